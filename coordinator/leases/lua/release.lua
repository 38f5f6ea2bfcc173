#!lua flags=allow-oom
-- Contract: the claim `token` ends, held or not. Safe to run twice. From now on the token is void:
-- a delayed acquire with it is refused. The outcome (if any) enters the run registry unless another
-- claim holds the lease. Never touches another claim's lease.
-- KEYS: 1 lease  2 run registry  3 fence counter  4 index  5 stream  6 epoch  7 void token
--       8 rescue queue: a dropped claim's run that nobody holds any more and that is to run again
--         goes there, since the server does not hand it out again
--       9 idle nodes: one is told of a preempted run, which the server hands out again
-- ARGV: 1 token  2 owner  3 run  4 fence (0: unknown)  5 outcome ('' for a claim that never ran)
--       6 keep  7 registry keep  8 stream length  9 void keep
--       10 why the claim was dropped ('' if it was not): the registry remembers it, since the W&B
--          server believes that the run is with this claim
--       11 key prefix of the nodes' wake-ups (same hash tag)
-- Answer: {now, epoch, status, missed}: released | again (was void already) | absent | not_yours
--   missed is 1 if another claim for the run was dropped while this one held it; the void token's
--   value keeps it for a repetition
local token, owner, run, fence, outcome = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local now = now_ms()
local epoch = epoch_of(KEYS[6], now)
local missed = 0
local function answer(status) return {int(now), int(epoch), status, missed} end

local function conclude()
  if outcome == '' then return end
  redis.call('HSET', KEYS[2], 'outcome', outcome, 'outcome_at', int(now), 'outcome_node', owner)
  redis.call('HINCRBY', KEYS[2], 'attempts', 1)
  redis.call('HINCRBY', KEYS[2], 'attempts:' .. outcome, 1)
  redis.call('PEXPIRE', KEYS[2], ARGV[7])
end

local function note_drop()
  if ARGV[10] == '' then return end
  redis.call('HSET', KEYS[2], 'dropped_at', int(now), 'dropped_by', owner, 'dropped_why', ARGV[10])
  redis.call('HINCRBY', KEYS[2], 'drops', 1)
  redis.call('PEXPIRE', KEYS[2], ARGV[7])
end

local function rescue(last_outcome)
  if TO_RUN_AGAIN[last_outcome] then redis.call('ZADD', KEYS[8], int(now), run) end
end

local function was_missed(record)
  local dropped_at = tonumber(redis.call('HMGET', KEYS[2], 'dropped_at')[1]) or 0
  return dropped_at > 0 and dropped_at >= record.granted_at
end

local function free(record)
  write_record(KEYS[1], {
    state = 'released', claimable_at = now, outcome = outcome, released_at = now,
  }, tonumber(ARGV[6]))
  redis.call('ZREM', KEYS[4], run)
  announce(KEYS[5], ARGV[8], 'released', run, owner, record.fence)
  wake_waiters(KEYS[1], ARGV[11], run)
end

local fresh = redis.call('SET', KEYS[7], '0', 'NX', 'PX', ARGV[9])
if not fresh then
  if redis.call('GET', KEYS[7]) == '1' then missed = 1 end
  return answer('again')
end
note_drop()
raise_fence(KEYS[3], fence)
local record = read_record(KEYS[1])
if record and record.token == token then
  if was_missed(record) then
    missed = 1
    redis.call('SET', KEYS[7], '1', 'PX', ARGV[9])
  end
  if record.state ~= 'released' then free(record) end
  conclude()
  if missed == 1 then rescue(outcome) end
  if outcome == 'preempted' then wake_idle(KEYS[9], ARGV[11], owner, now) end
  return answer('released')
end
if record and record.state ~= 'released' then return answer('not_yours') end
if ARGV[10] ~= '' then rescue(redis.call('HMGET', KEYS[2], 'outcome')[1]) end
if not record or record.fence < fence then conclude() end
return answer('absent')
