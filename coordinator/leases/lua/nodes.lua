#!lua flags=no-writes
-- Contract: the nodes that were seen within a day, by the time they were last seen, newest first.
-- Reads only.
-- KEYS: 1 nodes
-- ARGV: 1 most nodes  2 prefix of the node hashes (same hash tag)
-- Answer: {now, then for each node: name, last seen, facts (JSON, '' when it has said nothing)}
local reply = {int(now_ms())}
local names = redis.call('ZRANGE', KEYS[1], 0, tonumber(ARGV[1]) - 1, 'REV', 'WITHSCORES')
for i = 1, #names, 2 do
  local facts = redis.call('HMGET', ARGV[2] .. names[i], 'facts')
  reply[#reply + 1] = names[i]
  reply[#reply + 1] = int(tonumber(names[i + 1]))
  reply[#reply + 1] = facts[1] or ''
end
return reply
