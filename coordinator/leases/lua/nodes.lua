#!lua flags=no-writes
-- Contract: the nodes that were seen within a day, by the time they were last seen, newest first,
-- a page at a time. Reads only. A node that is seen between two pages may come twice, or shift
-- another into both; none is missed.
-- KEYS: 1 nodes
-- ARGV: 1 nodes to leave out  2 most nodes  3 prefix of the node hashes (same hash tag)
-- Answer: {now, then for each node: name, last seen, facts (JSON, '' when it has said nothing)}
local first = tonumber(ARGV[1])
local reply = {int(now_ms())}
local names = redis.call('ZRANGE', KEYS[1], first, first + tonumber(ARGV[2]) - 1, 'REV', 'WITHSCORES')
for i = 1, #names, 2 do
  local facts = redis.call('HMGET', ARGV[3] .. names[i], 'facts')
  reply[#reply + 1] = names[i]
  reply[#reply + 1] = int(tonumber(names[i + 1]))
  reply[#reply + 1] = facts[1] or ''
end
return reply
