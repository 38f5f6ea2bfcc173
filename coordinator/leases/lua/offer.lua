#!lua flags=allow-oom
-- Contract: a run is to run again without the W&B server's doing. It is queued for any node, due
-- after `delay`, doubled with each earlier offer, unless it finished, is quarantined or was offered
-- `most` times already. Offering it again only brings it forward. The grant of its lease takes it
-- out of the queue.
-- KEYS: 1 rescue queue  2 run registry  3 epoch
-- ARGV: 1 run  2 delay  3 most offers (0: not counted, no limit)
--       4 program  5 arguments (JSON), for a run that never had a lease ('': as registered)
--       6 registry keep
-- Answer: {now, epoch, queued | finished | exhausted | quarantined | unknown (no arguments known),
--   offers so far}
local now = now_ms()
local epoch = epoch_of(KEYS[3], now)
local run, delay, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if ARGV[5] ~= '' and redis.call('HSETNX', KEYS[2], 'args', ARGV[5]) == 1 then
  redis.call('HSET', KEYS[2], 'program', ARGV[4])
  redis.call('PEXPIRE', KEYS[2], ARGV[6])
end
local known = redis.call('HMGET', KEYS[2], 'outcome', 'args', 'rescues', 'quarantined')
local offers = tonumber(known[3]) or 0
local function answer(status) return {int(now), int(epoch), status, offers} end
if known[1] == 'finished' then return answer('finished') end
if not known[2] then return answer('unknown') end
if most > 0 and offers >= most then return answer('exhausted') end
if known[4] then return answer('quarantined') end
if most > 0 then
  offers = redis.call('HINCRBY', KEYS[2], 'rescues', 1)
end
local earlier = math.max(offers - 1, 0)
redis.call('ZADD', KEYS[1], 'LT', int(now + delay * 2 ^ earlier), run)
return answer('queued')
