-- Contract: now_ms() is the server's wall clock in milliseconds; a script calls it once.
-- Tests put another now_ms() in the place of this file to drive the scripts on a virtual clock.
local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
