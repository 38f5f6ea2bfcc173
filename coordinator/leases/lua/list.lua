#!lua flags=no-writes
-- Contract: the leases that stand, a page at a time in the order of their deadlines. Reads only.
-- A page begins after a lease, not at a place in the index: renewals move leases to its end all the
-- time, and would shift others out of the next page. So a lease may come twice, but none is missed.
-- KEYS: 1 index
-- ARGV: 1 deadline and  2 run of the last lease of the page before ('-inf' and '' for the first page)
--       3 count  4 prefix of the lease records (same hash tag as the index)
--       5 1: only count them by owner
-- Answer: {now, number of index entries read, deadline and run of the last one, then for each lease:
--     run, owner, slot, fence, state, kind, age, until the deadline, until it can be claimed
--   or for each owner: owner, leases}
-- An entry whose record has gone is left out.
local now = now_ms()
local from, most, prefix = ARGV[1], tonumber(ARGV[3]), ARGV[4]
local skip = 0
if from ~= '-inf' then -- leases of one node have one deadline; if the last one has moved: from its first
  for place, run in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], from, from)) do
    if run == ARGV[2] then skip = place end
  end
end
local found = redis.call('ZRANGEBYSCORE', KEYS[1], from, '+inf', 'WITHSCORES', 'LIMIT', skip, most)
local last, deadline = found[#found - 1] or '', found[#found] or '-inf'
local reply, counts = {int(now), int(#found / 2), deadline, last}, {}

local function row(run, record)
  local fields = {
    run, record.owner, record.slot, int(record.fence), record.state, record.kind,
    int(age_of(record.granted_at, now)), int(record.deadline - now),
    int(record.claimable_at - now),
  }
  for _, value in ipairs(fields) do reply[#reply + 1] = value end
end

local function count(run)
  local owner, state = unpack(redis.call('HMGET', prefix .. run, 'owner', 'state'))
  if state and state ~= 'released' then counts[owner] = (counts[owner] or 0) + 1 end
end

for i = 1, #found, 2 do
  local run = found[i]
  if ARGV[5] == '1' then
    count(run)
  else
    local record = read_record(prefix .. run)
    if record and record.state ~= 'released' then row(run, record) end
  end
end
for owner, leases in pairs(counts) do
  reply[#reply + 1] = owner
  reply[#reply + 1] = leases
end
return reply
