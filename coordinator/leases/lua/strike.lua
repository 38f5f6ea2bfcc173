#!lua
-- Contract: how a run that was resumed ended. After `most` strikes in a row it is quarantined: no
-- node takes it up again (acquire.lua, offer.lua, take.lua) until an operator pardons it, which
-- also queues it again, since the W&B server does not. A strike that runs twice may count twice.
-- KEYS: 1 run registry  2 rescue queue  3 epoch
-- ARGV: 1 run  2 strike | clear | pardon  3 most  4 why  5 registry keep
-- Answer: {now, epoch, strikes in a row, 1 if this strike quarantined it or this pardon freed it}
local now = now_ms()
local epoch = epoch_of(KEYS[3], now)
local run, what = ARGV[1], ARGV[2]
local strikes, changed = 0, 0
if what == 'strike' then
  strikes = redis.call('HINCRBY', KEYS[1], 'strikes', 1)
  if strikes >= tonumber(ARGV[3]) then
    changed = redis.call('HSETNX', KEYS[1], 'quarantined', ARGV[4])
    redis.call('ZREM', KEYS[2], run)
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
else
  redis.call('HDEL', KEYS[1], 'strikes')
  if what == 'pardon' and redis.call('HDEL', KEYS[1], 'quarantined') == 1 then
    changed = 1
    redis.call('ZADD', KEYS[2], int(now), run)
  end
end
return {int(now), int(epoch), strikes, changed}
