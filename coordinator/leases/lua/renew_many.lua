#!lua flags=allow-oom
-- Contract: one node renews everything that it holds, and reports itself alive. Safe to run twice.
-- A late renewal succeeds as long as nobody claimed. A record that is gone (a wipe) is re-asserted
-- with its old fence (0: its holder does not know it). Of two claims to one record the higher fence wins (a lost write).
-- KEYS: 1 fence counter  2 index  3 stream  4 epoch  5 nodes  6 node
--       then for each lease: its record, its void token
-- ARGV: 1 owner  2 ttl  3 grace  4 keep  5 stream length  6 node keep  7 node facts (JSON)
--       then for each lease: run, token, fence, kind, slot
-- Answer: {now, epoch, then for each lease: status, fence, owner}
--   ok | reasserted | taken (by owner, with fence) | freed (by an operator) | released
local owner, ttl, grace, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local FIRST_KEY, FIRST_ARG, ARGS = 6, 7, 5
local now = now_ms()
local deadline, claimable, expiry = int(now + ttl), int(now + ttl + grace), int(ttl + grace + keep)
local now_text, grace_text = int(now), int(grace)
local reply = {int(now), int(epoch_of(KEYS[4], now))}

local function add(status, fence, holder)
  reply[#reply + 1] = status
  reply[#reply + 1] = int(fence)
  reply[#reply + 1] = holder
end

-- What is kept for a day is put off once an hour: most of a renewal is the number of its calls.
local HOUR = 3600000
local hour = math.floor(now / HOUR)
local index = {}

-- The common path, a thousand times in a row: no tables, no needless conversions.
local function extend(key, run, renewed_at)
  redis.call('HSET', key, 'renewed_at', now_text, 'deadline', deadline, 'grace', grace_text,
    'claimable_at', claimable)
  if math.floor(renewed_at / HOUR) ~= hour then redis.call('PEXPIRE', key, expiry) end
  index[#index + 1] = deadline
  index[#index + 1] = run
end

local function reassert(key, lease)
  if lease.fence == 0 then
    lease.fence = math.max((tonumber(redis.call('GET', KEYS[1])) or 0) + 1, now)
  end
  redis.call('HSET', key, 'state', 'held', 'token', lease.token, 'owner', owner,
    'slot', lease.slot, 'kind', lease.kind, 'fence', int(lease.fence), 'why', 'reassert',
    'granted_at', '0', 'handoff_to', '', 'handoff_until', '0', 'closing', '')
  extend(key, lease.run, 0)
  raise_fence(KEYS[1], lease.fence)
  announce(KEYS[3], ARGV[5], 'reasserted', lease.run, owner, lease.fence)
  add('reasserted', lease.fence, owner)
end

local function renew(key, void_key, lease)
  local found = redis.call('HMGET', key, 'state', 'token', 'owner', 'fence', 'renewed_at')
  if not found[1] then
    if redis.call('EXISTS', void_key) == 1 then return add('released', lease.fence, owner) end
    return reassert(key, lease)
  end
  local record = {
    state = found[1], token = found[2], owner = found[3] or '', fence = tonumber(found[4]) or 0,
  }
  if record.token ~= lease.token then
    if record.fence >= lease.fence then return add('taken', record.fence, record.owner) end
    if redis.call('EXISTS', void_key) == 1 then return add('released', lease.fence, owner) end
    return reassert(key, lease)
  end
  if record.state ~= 'held' then return add(record.state, record.fence, record.owner) end
  extend(key, lease.run, tonumber(found[5]) or 0)
  add('ok', record.fence, owner)
end

for i = 0, (#ARGV - FIRST_ARG) / ARGS - 1 do
  local at = FIRST_ARG + i * ARGS
  renew(KEYS[FIRST_KEY + 2 * i + 1], KEYS[FIRST_KEY + 2 * i + 2], {
    run = ARGV[at + 1], token = ARGV[at + 2], fence = tonumber(ARGV[at + 3]),
    kind = ARGV[at + 4], slot = ARGV[at + 5],
  })
end
if #index > 0 then redis.call('ZADD', KEYS[2], unpack(index)) end
local seen = tonumber(redis.call('HMGET', KEYS[6], 'seen')[1]) or 0
redis.call('HSET', KEYS[6], 'seen', now_text, 'facts', ARGV[7])
redis.call('ZADD', KEYS[5], now_text, owner)
if math.floor(seen / HOUR) ~= hour then
  redis.call('PEXPIRE', KEYS[6], ARGV[6])
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', int(now - tonumber(ARGV[6])))
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', int(now - keep))
end
return reply
