-- Contract: functions that the scripts share; put in front of each of them by the loader.
-- Numbers are milliseconds of the server's clock unless a name says otherwise. A field that is
-- missing reads as 0 or ''.
local RECORD_FIELDS = {
  'state', 'token', 'owner', 'slot', 'kind', 'fence', 'why', 'granted_at', 'renewed_at', 'deadline',
  'grace', 'claimable_at', 'handoff_to', 'handoff_until', 'closing',
}
local NUMBERS = {
  fence = true, granted_at = true, renewed_at = true, deadline = true, grace = true,
  claimable_at = true, handoff_until = true,
}

-- Numbers become text without an exponent.
local function int(number)
  return string.format('%.0f', number)
end

-- The lease record at `key`, or nil when there is none.
local function read_record(key)
  local values = redis.call('HMGET', key, unpack(RECORD_FIELDS))
  if not values[1] then return nil end
  local record = {}
  for i, field in ipairs(RECORD_FIELDS) do
    local value = values[i] or ''
    if NUMBERS[field] then value = tonumber(value) or 0 end
    record[field] = value
  end
  return record
end

-- Writes `fields` into the record and lets it outlive its deadline by `keep`.
local function write_record(key, fields, keep)
  local flat = {}
  for field, value in pairs(fields) do
    flat[#flat + 1] = field
    flat[#flat + 1] = type(value) == 'number' and int(value) or value
  end
  redis.call('HSET', key, unpack(flat))
  redis.call('PEXPIRE', key, int(keep))
end

-- After the clock went back, times of the past lie in the future: nothing may wait for them longer
-- than it would have waited without the jump. Corrects the record and its copy in the store.
local function bound_waits(key, record, now, ttl)
  local latest = now + ttl + record.grace
  local limits = {deadline = now + ttl, claimable_at = latest, handoff_until = latest + ttl}
  for field, limit in pairs(limits) do
    if record[field] > limit then
      record[field] = limit
      redis.call('HSET', key, field, int(limit))
    end
  end
end

-- An age; a time that lies well in the future tells nothing, so it counts as long ago.
local function age_of(time, now)
  local age = now - time
  if age < -1000 then return now end
  return math.max(age, 0)
end

-- Outcomes after which the W&B server may have given the run to a claim that we dropped.
local TO_RUN_AGAIN = {preempted = true, interrupted = true, crashed = true, lost_claim = true}

-- Raises the counter to at least `fence`.
local function raise_fence(key, fence)
  local counter = tonumber(redis.call('GET', key)) or 0
  if fence > counter then redis.call('SET', key, int(fence)) end
end

-- Appends one entry to the bounded stream that wakes those who wait.
local function announce(key, max_length, event, run, owner, fence)
  redis.call('XADD', key, 'MAXLEN', '~', max_length, '*',
    'event', event, 'run', run, 'owner', owner, 'fence', int(fence))
end

-- Wakes the nodes whose claims wait for the lease at `lease_key` (acquire.lua notes them), each by a
-- stream of its own: if all nodes read one stream, each release would cost a reply to every node.
-- `prefix` is that of these streams, which carry the same hash tag.
local WAKE_LENGTH, WAKE_KEEP = 100, 60000
local function wake_waiters(lease_key, prefix, run)
  local waiters = redis.call('HMGET', lease_key, 'waiters')[1] or ''
  for node in string.gmatch(waiters, '[^\n]+') do
    redis.call('XADD', prefix .. node, 'MAXLEN', '~', WAKE_LENGTH, '*', 'run', run)
    redis.call('PEXPIRE', prefix .. node, WAKE_KEEP)
  end
  if waiters ~= '' then redis.call('HSET', lease_key, 'waiters', '') end
end

-- Tells one node that rests (idle.lua) that the W&B server has queued a run again: it asks for work
-- now, not at the end of its pause. Only one, since there is one run; not `owner`, which gave it up.
local IDLE_KEEP = 600000
local function wake_idle(key, prefix, owner, now)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', int(now))
  for _, node in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', '+inf', 'LIMIT', 0, 2)) do
    if node ~= owner then
      redis.call('ZREM', key, node)
      redis.call('XADD', prefix .. node, 'MAXLEN', '~', WAKE_LENGTH, '*', 'run', '')
      redis.call('PEXPIRE', prefix .. node, WAKE_KEEP)
      return
    end
  end
end

-- The time of first use since the data were last lost.
local function epoch_of(key, now)
  local epoch = tonumber(redis.call('GET', key))
  if not epoch or epoch > now then
    redis.call('SET', key, int(now))
    return now
  end
  return epoch
end
