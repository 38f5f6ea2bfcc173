#!lua flags=allow-oom
-- Contract: the holder says that its training is ending. A claim that meets the lease from now on
-- knows a hand-off from a race, however young the lease is. Safe to run twice. Touches no other's.
-- KEYS: 1 lease  2 epoch
-- ARGV: 1 token
-- Answer: {now, epoch, 1 | 0 (not yours)}
local now = now_ms()
local epoch = epoch_of(KEYS[2], now)
local record = read_record(KEYS[1])
local mine = record and record.token == ARGV[1] and record.state == 'held'
if mine then redis.call('HSET', KEYS[1], 'closing', '1') end
return {int(now), int(epoch), mine and 1 or 0}
