#!lua flags=allow-oom
-- Contract: the right to change the state of the sweep itself, for one node at a time and for `hold`
-- at most. Safe to run twice: the same token is granted again. `revive` (the sweep is over and runs
-- wait) is refused when a person ended the sweep with coordinatorctl, and when the last revival was
-- for exactly what waits now: then nothing ran after it, so somebody ended the sweep again.
-- `stop` and `cancel` leave their mark before they are carried out, `resume` takes it away.
-- KEYS: 1 sweep  2 rescue queue  3 epoch
-- ARGV: 1 token  2 node  3 hold  4 revive | pause | resume | stop | cancel  5 what waits on the server
--       6 key prefix of runs
-- Answer: {now, epoch, granted | busy | ended | again, holder or mark, rescues that wait}
local now = now_ms()
local epoch = epoch_of(KEYS[3], now)
local token, node, verb = ARGV[1], ARGV[2], ARGV[4]
local seen = redis.call('HMGET', KEYS[1], 'token', 'holder', 'until', 'mark', 'revived')
local mark = seen[4] or ''

local waits, rescues = ARGV[5], redis.call('ZRANGE', KEYS[2], 0, 99)
for _, run in ipairs(rescues) do
  waits = waits .. ' ' .. run .. ':' .. (redis.call('HMGET', ARGV[6] .. run, 'rescues')[1] or '0')
end
local function answer(status, detail) return {int(now), int(epoch), status, detail, #rescues} end

if seen[1] and seen[1] ~= token and now < (tonumber(seen[3]) or 0) then
  return answer('busy', seen[2] or '')
end
if verb == 'revive' then
  if mark ~= '' then return answer('ended', mark) end
  if seen[5] == waits then return answer('again', '') end
end
if seen[1] ~= token then
  redis.call('HSET', KEYS[1], 'before', mark, 'waits', waits)
  redis.call('HINCRBY', KEYS[1], 'fence', 1)
end
if verb == 'stop' or verb == 'cancel' then mark = verb elseif verb == 'resume' then mark = '' end
redis.call('HSET', KEYS[1], 'token', token, 'holder', node, 'until', int(now + ARGV[3]),
  'mark', mark)
return answer('granted', '')
