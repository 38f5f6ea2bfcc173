#!lua
-- Contract: a node has a free slot and rests between two questions for work; it may be told (see
-- `wake_idle`) that the W&B server has a run again. Run twice it says the same.
-- KEYS: 1 idle nodes  2 epoch
-- ARGV: 1 node  2 milliseconds that it rests
-- Answer: {now, epoch}
local now = now_ms()
local epoch = epoch_of(KEYS[2], now)
redis.call('ZADD', KEYS[1], int(now + tonumber(ARGV[2])), ARGV[1])
redis.call('PEXPIRE', KEYS[1], IDLE_KEEP)
return {int(now), int(epoch)}
