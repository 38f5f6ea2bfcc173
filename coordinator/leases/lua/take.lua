#!lua flags=allow-oom
-- Contract: one run that is due in the rescue queue, for a node with a free slot. The entry stays in
-- the queue, hidden for `hidden`: should the taker vanish, others see it again. The grant of the
-- run's lease takes it out. A run whose holder died without a word (deadline and grace are over) is
-- put into the queue here. Runs that finished or are quarantined leave the queue.
-- KEYS: 1 rescue queue  2 index  3 epoch
-- ARGV: 1 hidden  2 key prefix of runs  3 key prefix of leases  4 1: take, 0: only count  5 grace
-- Keys of runs and leases are built here: they carry the same hash tag (as in list.lua).
-- Answer: {now, epoch, entries in the queue, leases that stand
--          [, run, program, arguments, for how long its dead holder has been silent ('': it is not
--          dead)]}
local now = now_ms()
local epoch = epoch_of(KEYS[3], now)
local hidden, runs, leases = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local LOOK = 16

local overdue = int(now - tonumber(ARGV[5]))
for _, run in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', overdue, 'LIMIT', 0, LOOK)) do
  local record = read_record(leases .. run)
  if record and record.state ~= 'released' and now >= record.claimable_at then
    local outcome = redis.call('HMGET', runs .. run, 'outcome', 'outcome_at')
    redis.call('ZREM', KEYS[2], run)
    if outcome[1] ~= 'finished' then
      redis.call('ZADD', KEYS[1], int(now), run)
      redis.call('HSET', runs .. run, 'lost', int(record.renewed_at))
    end
  end
end

local reply = {int(now), int(epoch), 0, 0}
if ARGV[4] == '1' then
  for _, run in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', int(now), 'LIMIT', 0, LOOK)) do
    local known = redis.call('HMGET', runs .. run, 'outcome', 'program', 'args', 'lost',
      'quarantined')
    if known[1] == 'finished' or known[5] or not known[3] then
      redis.call('ZREM', KEYS[1], run)
    else
      redis.call('ZADD', KEYS[1], int(now + hidden), run)
      local silent = known[4] and int(age_of(tonumber(known[4]), now)) or ''
      for i, value in ipairs({run, known[2] or '', known[3], silent}) do
        reply[4 + i] = value
      end
      break
    end
  end
end
reply[3], reply[4] = redis.call('ZCARD', KEYS[1]), redis.call('ZCARD', KEYS[2])
return reply
