#!lua
-- Contract: one question for work is about to be sent by some node of the sweep; all nodes together
-- keep to a rate (core/pace.py is the same for one node). Run twice it counts twice: it only slows.
-- Whoever has to wait is told a turn of its own, one after the other: if all came back for the next
-- question that is free, a thousand would ask for each. A turn is kept for nobody: who comes first
-- may ask, so a node that never comes back holds up nobody for longer than `longest`.
-- KEYS: 1 pace  2 epoch  3 turn
-- ARGV: 1 milliseconds between two questions in the long run  2 burst  3 longest wait that is told
-- Answer: {now, epoch, milliseconds to wait and ask again (0: go, it was counted)}
local now = now_ms()
local epoch = epoch_of(KEYS[2], now)
local interval, burst, longest = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local full_at = tonumber(redis.call('GET', KEYS[1])) or now
-- After the clock went back nobody may wait for longer than the whole burst takes.
full_at = math.max(now, math.min(full_at, now + interval * burst))
local wait = math.ceil(full_at - now - interval * (burst - 1))
if wait <= 0 then
  wait = 0
  local keep = math.ceil(full_at - now + interval) + 1000
  redis.call('SET', KEYS[1], string.format('%.3f', full_at + interval), 'PX', int(keep))
else
  local told = math.min(tonumber(redis.call('GET', KEYS[3])) or 0, now + longest)
  local turn = math.max(now + wait, told + interval)
  wait = math.min(math.ceil(turn - now), math.max(wait, longest))
  redis.call('SET', KEYS[3], string.format('%.3f', turn), 'PX', int(longest + 1000))
end
return {int(now), int(epoch), int(wait)}
