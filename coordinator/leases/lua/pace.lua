#!lua
-- Contract: one question for work is about to be sent by some node of the sweep; all nodes together
-- keep to a rate (core/pace.py is the same for one node). Run twice it counts twice: it only slows.
-- KEYS: 1 pace  2 epoch
-- ARGV: 1 milliseconds between two questions in the long run  2 burst
-- Answer: {now, epoch, milliseconds to wait and ask again (0: go, it was counted)}
local now = now_ms()
local epoch = epoch_of(KEYS[2], now)
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local full_at = tonumber(redis.call('GET', KEYS[1])) or now
-- After the clock went back nobody may wait for longer than the whole burst takes.
full_at = math.max(now, math.min(full_at, now + interval * burst))
local wait = math.ceil(full_at - now - interval * (burst - 1))
if wait <= 0 then
  wait = 0
  local keep = math.ceil(full_at - now + interval) + 1000
  redis.call('SET', KEYS[1], string.format('%.3f', full_at + interval), 'PX', int(keep))
end
return {int(now), int(epoch), int(wait)}
