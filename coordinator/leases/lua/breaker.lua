#!lua
-- Contract: the breaker that all nodes of the sweep share, changed by compare-and-set: its rules are
-- in core/breaker.py and nowhere else. Safe to run twice: the second time its version is another.
-- KEYS: 1 breaker  2 epoch
-- ARGV: 1 version that the change was made from ('': only look)  2 the new state (JSON)  3 keep
-- Answer: {now, epoch, changed (1 or 0), version, state (JSON, '' for none)}
local now = now_ms()
local epoch = epoch_of(KEYS[2], now)
local found = redis.call('HMGET', KEYS[1], 'version', 'state')
local version, state, changed = found[1] or '0', found[2] or '', 0
if ARGV[1] == version then
  version, state, changed = int(tonumber(version) + 1), ARGV[2], 1
  redis.call('HSET', KEYS[1], 'version', version, 'state', state)
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {int(now), int(epoch), changed, version, state}
