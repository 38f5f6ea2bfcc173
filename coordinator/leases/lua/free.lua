#!lua flags=allow-oom
-- Contract: an operator releases a lease whose holder is gone, if it is still the one that he saw
-- (compare-and-set on the fence). Others may claim at once. Refused while the holder is heard of,
-- unless forced. Safe to run twice. Should the holder live all the same, it learns at its next
-- renewal that it is to stop, or that another has the run. The run enters the rescue queue as that
-- of a holder who died without a word; the grant of its lease takes it out.
-- KEYS: 1 lease  2 run registry  3 index  4 stream  5 epoch  6 rescue queue
-- ARGV: 1 run  2 expected fence  3 silence that makes a holder gone  4 1: forced  5 keep
--       6 stream length  7 prefix of the node hashes (same hash tag)  8 that of their wake-ups
-- Answer: {now, epoch, status, fence, owner, silent}: freed | missing | changed | released | alive
local run, expected, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = now_ms()
local epoch = epoch_of(KEYS[5], now)
local record = read_record(KEYS[1])
if not record then return {int(now), int(epoch), 'missing', '0', '', '0'} end

-- A stolen lease is not renewed any more while its holder stops: then the node's own word counts.
local function silence()
  local heard = record.renewed_at
  if record.state == 'freed' then
    local seen = redis.call('HMGET', ARGV[7] .. record.owner, 'seen')
    heard = math.max(heard, tonumber(seen[1]) or 0)
  end
  return age_of(heard, now)
end

local function answer(status)
  return {int(now), int(epoch), status, int(record.fence), record.owner, int(silence())}
end

local function queue_rescue()
  local known = redis.call('HMGET', KEYS[2], 'outcome', 'args')
  if known[1] == 'finished' or not known[2] then return end
  redis.call('ZADD', KEYS[6], int(now), run)
  redis.call('HSET', KEYS[2], 'lost', int(now - silence()))
end

if record.fence ~= expected then return answer('changed') end
if record.state == 'released' then return answer('released') end
if ARGV[4] ~= '1' and silence() <= limit then return answer('alive') end
write_record(KEYS[1], {
  state = 'released', claimable_at = now, why = 'operator', handoff_to = '', handoff_until = 0,
  released_at = now,
}, tonumber(ARGV[5]))
redis.call('ZREM', KEYS[3], run)
queue_rescue()
announce(KEYS[4], ARGV[6], 'released', run, record.owner, record.fence)
wake_waiters(KEYS[1], ARGV[8], run)
return answer('freed')
