#!lua
-- Contract: the last stays of a run in slots, on whichever nodes, for people to read; adds one if it
-- is given. Safe to run twice: a line that is there is not added again.
-- KEYS: 1 run registry  2 epoch
-- ARGV: 1 a stay ('' to read only)  2 most lines  3 registry keep
-- Answer: {now, epoch, stays, one a line and oldest first}
local now = now_ms()
local epoch = epoch_of(KEYS[2], now)
local stays = redis.call('HMGET', KEYS[1], 'stays')[1] or ''
if ARGV[1] ~= '' and not string.find(stays, ARGV[1], 1, true) then
  local lines = {}
  for line in string.gmatch(stays, '[^\n]+') do lines[#lines + 1] = line end
  lines[#lines + 1] = ARGV[1]
  local first = math.max(1, #lines - tonumber(ARGV[2]) + 1)
  stays = table.concat(lines, '\n', first)
  redis.call('HSET', KEYS[1], 'stays', stays)
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {int(now), int(epoch), stays}
