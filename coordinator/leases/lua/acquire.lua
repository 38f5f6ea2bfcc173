#!lua
-- Contract: one claim asks for the lease of one run. Safe to run twice: the same token gets the
-- same fence. Never grants after `not_after`, to a void token, for a run that finished or is
-- quarantined (strike.lua), or while another claim's lease stands (deadline and grace not both over).
-- KEYS: 1 lease  2 run registry  3 fence counter  4 index  5 stream  6 epoch  7 void token
--       8 rescue queue
-- ARGV: 1 token  2 owner  3 slot  4 kind  5 run  6 ttl  7 grace  8 settle  9 not_after  10 fence hint
--       11 keep  12 registry keep  13 stream length  14 program  15 arguments (JSON)
-- Answer: {now, epoch, status, ...}
--   granted, fence, why (claim | takeover | again)    late    void    finished, node    quarantined, why
--   settling, wait    held, owner, fence, age, silent, wait, state, closing    reserved, target, wait
local token, owner, slot, kind, run = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local ttl, grace, settle = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local not_after, hint, keep = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local lease_key, run_key, fence_key, index_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local now = now_ms()
local epoch = epoch_of(KEYS[6], now)

local function answer(...) return {int(now), int(epoch), ...} end

local function register()
  redis.call('HSETNX', run_key, 'first_seen', int(now))
  redis.call('HSET', run_key, 'program', ARGV[14], 'args', ARGV[15], 'claimed_at', int(now))
  redis.call('PEXPIRE', run_key, ARGV[12])
end

local function grant(fence, why)
  write_record(lease_key, {
    state = 'held', token = token, owner = owner, slot = slot, kind = kind, fence = fence,
    why = why, granted_at = now, renewed_at = now, deadline = now + ttl, grace = grace,
    claimable_at = now + ttl + grace, handoff_to = '', handoff_until = 0, closing = '',
    waiters = '',
  }, ttl + grace + keep)
  raise_fence(fence_key, fence)
  redis.call('ZADD', index_key, int(now + ttl), run)
  redis.call('ZREM', KEYS[8], run)
  redis.call('HDEL', run_key, 'lost')
  redis.call('HSET', run_key, 'granted_at', int(now), 'granted_to', owner, 'fence', int(fence))
  announce(KEYS[5], ARGV[13], why == 'takeover' and 'taken_over' or 'acquired', run, owner, fence)
  return answer('granted', int(fence), why)
end

-- The node is woken at the lease's end. Who is left out of a long list has its timer all the same.
local MOST_WAITERS = 32
local function note_waiter()
  local waiters = redis.call('HMGET', lease_key, 'waiters')[1] or ''
  local _, count = string.gsub(waiters, '\n', '')
  if count >= MOST_WAITERS or string.find('\n' .. waiters, '\n' .. owner .. '\n', 1, true) then return end
  redis.call('HSET', lease_key, 'waiters', waiters .. owner .. '\n')
end

if redis.call('EXISTS', KEYS[7]) == 1 then return answer('void') end
if now > not_after then return answer('late') end
register()

local record = read_record(lease_key)
if record and record.token == token and record.state == 'held' then
  write_record(lease_key, {
    renewed_at = now, deadline = now + ttl, claimable_at = now + ttl + record.grace,
  }, ttl + grace + keep)
  redis.call('ZADD', index_key, int(now + ttl), run)
  return answer('granted', int(record.fence), 'again')
end

local last = redis.call('HMGET', run_key, 'outcome', 'outcome_node', 'quarantined')
if last[1] == 'finished' then return answer('finished', last[2] or '') end
if last[3] then return answer('quarantined', last[3]) end

if not record then
  local settled = epoch + settle
  if kind == 'resume' and now < settled then return answer('settling', int(settled - now)) end
else
  bound_waits(lease_key, record, now, ttl)
  if record.state ~= 'released' and now < record.claimable_at then
    note_waiter()
    return answer('held', record.owner, int(record.fence), int(age_of(record.granted_at, now)),
      int(age_of(record.renewed_at, now)), int(record.claimable_at - now), record.state,
      record.closing == '1' and 1 or 0)
  end
end

if record and record.handoff_to ~= '' and record.handoff_to ~= owner then
  local wait = record.handoff_until - now
  if wait > 0 then return answer('reserved', record.handoff_to, int(wait)) end
end

local counter = tonumber(redis.call('GET', fence_key)) or 0
local fence = math.max(counter, record and record.fence or 0, hint) + 1
local abandoned = record and record.state ~= 'released'
return grant(math.max(fence, now), abandoned and 'takeover' or 'claim')
