#!lua
-- Contract: an operator takes a lease back, if it is still the one that he saw (compare-and-set on
-- the fence). Safe to run twice. The holder learns at its next renewal that it is to stop; others
-- may claim after `after` or when it has released, `target` (a node) before all others.
-- KEYS: 1 lease  2 stream  3 epoch
-- ARGV: 1 run  2 expected fence  3 after  4 target node ('' for none)  5 target's head start
--       6 keep  7 stream length  8 why  9 key prefix of the nodes' wake-ups (same hash tag)
-- Answer: {now, epoch, status, fence, owner}: freed | missing | changed | released
local run, expected, after = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = now_ms()
local epoch = epoch_of(KEYS[3], now)
local record = read_record(KEYS[1])
if not record then return {int(now), int(epoch), 'missing', '0', ''} end

local function answer(status)
  return {int(now), int(epoch), status, int(record.fence), record.owner}
end

if record.fence ~= expected then return answer('changed') end
if record.state == 'released' then return answer('released') end
if record.state == 'freed' then return answer('freed') end
local claimable = math.min(record.claimable_at, now + after)
write_record(KEYS[1], {
  state = 'freed', claimable_at = claimable, why = ARGV[8], handoff_to = ARGV[4],
  handoff_until = ARGV[4] == '' and 0 or claimable + tonumber(ARGV[5]),
}, after + tonumber(ARGV[6]))
announce(KEYS[2], ARGV[7], 'freed', run, record.owner, record.fence)
wake_waiters(KEYS[1], ARGV[9], run)
return answer('freed')
