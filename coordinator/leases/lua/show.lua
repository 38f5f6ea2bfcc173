#!lua flags=no-writes
-- Contract: everything that is known of one run's lease and of the run. Reads only.
-- KEYS: 1 lease  2 run registry
-- ARGV: 1 run  2... fields of the run registry that are wanted
-- Answer: {now, 0} without a lease record, else {now, 1, the fields of list.lua in its order,
--   why, silent, handoff target, until the hand-off's end, closing (1 or ''), then each registry
--   field ('' when it is missing)}
local now = now_ms()
local record = read_record(KEYS[1])
if not record then return {int(now), '0'} end
local reply = {
  int(now), '1', ARGV[1], record.owner, record.slot, int(record.fence), record.state, record.kind,
  int(age_of(record.granted_at, now)), int(record.deadline - now), int(record.claimable_at - now),
  record.why, int(age_of(record.renewed_at, now)), record.handoff_to,
  int(math.max(record.handoff_until - now, 0)), record.closing or '',
}
for _, value in ipairs(redis.call('HMGET', KEYS[2], unpack(ARGV, 2))) do
  reply[#reply + 1] = value or ''
end
return reply
