#!lua flags=no-writes
-- Contract: the leases that stand, a page at a time in the order of their deadlines. Reads only.
-- KEYS: 1 index
-- ARGV: 1 offset  2 count  3 prefix of the lease records (same hash tag as the index)
-- Answer: {now, number of index entries read, then for each lease:
--   run, owner, slot, fence, state, kind, age, until the deadline, until it can be claimed}
-- An entry whose record has gone is left out.
local now = now_ms()
local first = tonumber(ARGV[1])
local runs = redis.call('ZRANGE', KEYS[1], first, first + tonumber(ARGV[2]) - 1)
local reply = {int(now), int(#runs)}
for _, run in ipairs(runs) do
  local record = read_record(ARGV[3] .. run)
  if record and record.state ~= 'released' then
    local fields = {
      run, record.owner, record.slot, int(record.fence), record.state, record.kind,
      int(age_of(record.granted_at, now)), int(record.deadline - now),
      int(record.claimable_at - now),
    }
    for _, value in ipairs(fields) do reply[#reply + 1] = value end
  end
end
return reply
