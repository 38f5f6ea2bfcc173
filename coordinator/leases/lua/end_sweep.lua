#!lua flags=allow-oom
-- Contract: the change of the sweep's state for which `token` was granted is over. What failed leaves
-- no mark. A revival that worked is remembered with what waited then. Touches no other's grant.
-- KEYS: 1 sweep  2 epoch
-- ARGV: 1 token  2 revive | pause | resume | stop | cancel  3 1: it worked, 0
-- Answer: {now, epoch, 1 | 0 (not yours any more)}
local now = now_ms()
local epoch = epoch_of(KEYS[2], now)
local seen = redis.call('HMGET', KEYS[1], 'token', 'before', 'waits')
local mine = seen[1] == ARGV[1]
if mine then
  if ARGV[3] ~= '1' then
    redis.call('HSET', KEYS[1], 'mark', seen[2] or '')
  elseif ARGV[2] == 'revive' then
    redis.call('HSET', KEYS[1], 'revived', seen[3] or '')
  elseif ARGV[2] == 'resume' then
    redis.call('HDEL', KEYS[1], 'revived')
  end
  redis.call('HDEL', KEYS[1], 'token', 'holder', 'until', 'before', 'waits')
end
return {int(now), int(epoch), mine and 1 or 0}
