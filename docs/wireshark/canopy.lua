-- Wireshark dissector for Canopy, wire version 0xC1. The format is described in docs/wire.md.
--
-- Install: copy this file to the folder that Wireshark names under
--   Help > About Wireshark > Folders > Personal Lua Plugins
-- and press Ctrl+Shift+L, or give it to one run:
--   wireshark -X lua_script:canopy.lua      tshark -X lua_script:canopy.lua -r FILE
--
-- All datagrams on UDP port 4040, a relay's default, are taken for Canopy's. On other ports a
-- packet is found by its first two bytes, version and kind. For a port where another dissector
-- comes first, or to see datagrams of an unknown kind, name the port under
--   Preferences > Protocols > Canopy > UDP ports
-- or choose Canopy under "Decode As"; for tshark: -o canopy.ports:4040-4043 or
-- -d udp.port==4043,canopy
--
-- Filters: canopy.group == 7 finds every update to group 7, alone or in a bundle, and every
-- change and refusal of a subscription to it. canopy.malformed finds what a relay would drop.
--
-- Every read is preceded by a check of the bytes left: a hostile packet is shown as malformed and
-- never raises a Lua error. Works on Wireshark 4.0 and later, whose Lua is 5.2 or 5.4.

local VERSION = 0xC1
local DEFAULT_PORTS = "4040"
local HEADER_LEN = 20
local MAX_DATAGRAM = 1452
local RECORD_HEADER_LEN = 12
local SECTION_LEN = 4
local GROUP_BIT = 0x80000000
local FILLER = 0x80

local DATA, BUNDLE, SUBSCRIBE, SUBSCRIBE_ACK = 0x01, 0x02, 0x03, 0x04
local ROUTE_REPLY = 0x08
local HELLO, COOKIE, CONNECT, CONNECTED, REFUSED = 0x10, 0x11, 0x12, 0x13, 0x14
local KEEPALIVE, KEEPALIVE_ACK, LEAVE, LEFT = 0x15, 0x16, 0x17, 0x18
local CHALLENGE, REBIND = 0x19, 0x1a

local KINDS = {
  [DATA] = "Data",
  [BUNDLE] = "Bundle",
  [SUBSCRIBE] = "Subscribe",
  [SUBSCRIBE_ACK] = "Subscribe-ack",
  [ROUTE_REPLY] = "Route-reply",
  [HELLO] = "Hello",
  [COOKIE] = "Cookie",
  [CONNECT] = "Connect",
  [CONNECTED] = "Connected",
  [REFUSED] = "Refused",
  [KEEPALIVE] = "Keepalive",
  [KEEPALIVE_ACK] = "Keepalive-ack",
  [LEAVE] = "Leave",
  [LEFT] = "Left",
  [CHALLENGE] = "Challenge",
  [REBIND] = "Rebind",
}

local OPERATIONS = { [0] = "Drop", [1] = "Add" }
local SUITES = { [0] = "None" }
local TABLE_FULL = { [1] = "table full", [2] = "participant's share full" }
local LEAVE_REASONS = { [0] = "done", [1] = "draining" }
local REFUSED_REASONS = {
  [1] = "sessions full",
  [2] = "unknown comtree",
  [3] = "another version",
  [4] = "credentials",
  [5] = "draining",
}

local canopy = Proto("canopy", "Canopy")

local f = {
  version = ProtoField.uint8("canopy.version", "Version", base.HEX),
  kind = ProtoField.uint8("canopy.kind", "Kind", base.HEX, KINDS),
  flags = ProtoField.uint8("canopy.flags", "Flags", base.HEX),
  echo = ProtoField.bool("canopy.flags.echo", "Echo", 8, nil, 0x01),
  route_request = ProtoField.bool("canopy.flags.route_request", "Route-request", 8, nil, 0x02),
  shaker = ProtoField.bool("canopy.flags.shaker", "Shaker", 8, nil, 0x04),
  filler = ProtoField.bool("canopy.flags.filler", "Filler", 8, nil, FILLER),
  level = ProtoField.uint8("canopy.level", "Level"),
  comtree = ProtoField.uint32("canopy.comtree", "Comtree"),
  src = ProtoField.uint32("canopy.src", "Source", base.HEX),
  src_site = ProtoField.uint32("canopy.src.site", "Site", base.DEC, nil, 0x7fff0000),
  src_endpoint = ProtoField.uint32("canopy.src.endpoint", "Endpoint", base.DEC, nil, 0xffff),
  dst = ProtoField.uint32("canopy.dst", "Destination", base.HEX),
  dst_site = ProtoField.uint32("canopy.dst.site", "Site", base.DEC, nil, 0x7fff0000),
  dst_endpoint = ProtoField.uint32("canopy.dst.endpoint", "Endpoint", base.DEC, nil, 0xffff),
  group = ProtoField.uint32("canopy.group", "Group", base.DEC, nil, 0x7fffffff),
  length = ProtoField.uint16("canopy.length", "Payload length"),
  hop_limit = ProtoField.uint8("canopy.hop_limit", "Hop limit"),
  reserved = ProtoField.uint8("canopy.reserved", "Reserved", base.HEX),
  payload = ProtoField.bytes("canopy.payload", "Payload"),
  ignored = ProtoField.bytes("canopy.ignored", "Ignored bytes"),
  padding = ProtoField.bytes("canopy.padding", "Padding"),

  record = ProtoField.none("canopy.record", "Record"),
  record_length = ProtoField.uint16("canopy.record.length", "Payload length"),
  record_level = ProtoField.uint8("canopy.record.level", "Level"),
  record_flags = ProtoField.uint8("canopy.record.flags", "Flags", base.HEX),
  record_echo = ProtoField.bool("canopy.record.flags.echo", "Echo", 8, nil, 0x01),
  record_filler = ProtoField.bool("canopy.record.flags.filler", "Filler", 8, nil, FILLER),
  record_src = ProtoField.uint32("canopy.record.src", "Source", base.HEX),
  record_dst = ProtoField.uint32("canopy.record.dst", "Destination", base.HEX),
  record_payload = ProtoField.bytes("canopy.record.payload", "Payload"),
  updates = ProtoField.uint16("canopy.bundle.updates", "Updates"),
  fillers = ProtoField.uint16("canopy.bundle.fillers", "Filler records"),

  sequence = ProtoField.uint32("canopy.sequence", "Sequence"),
  section = ProtoField.none("canopy.section", "Section"),
  operation = ProtoField.uint8("canopy.section.operation", "Operation", base.DEC, OPERATIONS),
  section_level = ProtoField.uint8("canopy.section.level", "Level"),
  section_count = ProtoField.uint16("canopy.section.count", "Groups"),
  table_full = ProtoField.uint8("canopy.section.reason", "Reason", base.DEC, TABLE_FULL),

  nonce = ProtoField.uint64("canopy.nonce", "Nonce", base.HEX),
  cookie = ProtoField.bytes("canopy.cookie", "Cookie"),
  suite = ProtoField.uint8("canopy.suite", "Security suite", base.DEC, SUITES),
  token_length = ProtoField.uint16("canopy.token.length", "Token length"),
  token = ProtoField.bytes("canopy.token", "Token"),
  address = ProtoField.uint32("canopy.address", "Address", base.HEX),
  lifetime = ProtoField.uint32("canopy.lifetime_ms", "Session lifetime (ms)"),
  keepalive = ProtoField.uint32("canopy.keepalive_ms", "Keepalive interval (ms)"),
  subscription = ProtoField.uint32("canopy.subscription_ms", "Subscription lifetime (ms)"),
  secret = ProtoField.bytes("canopy.secret", "Secret"),
  refused = ProtoField.uint8("canopy.refused.reason", "Reason", base.DEC, REFUSED_REASONS),
  leave = ProtoField.uint8("canopy.leave.reason", "Reason", base.DEC, LEAVE_REASONS),
  stamp = ProtoField.uint64("canopy.stamp", "Stamp"),
  proof = ProtoField.bytes("canopy.proof", "Proof"),
}
canopy.fields = f

local e = {
  malformed = ProtoExpert.new(
    "canopy.malformed", "A receiver drops this packet", expert.group.MALFORMED, expert.severity.ERROR
  ),
  version = ProtoExpert.new(
    "canopy.other_version", "Another version", expert.group.PROTOCOL, expert.severity.WARN
  ),
  kind = ProtoExpert.new(
    "canopy.unknown_kind", "Unknown kind", expert.group.PROTOCOL, expert.severity.WARN
  ),
  cut = ProtoExpert.new(
    "canopy.cut", "Cut short by the capture", expert.group.UNDECODED, expert.severity.NOTE
  ),
}
canopy.experts = e

canopy.prefs.ports = Pref.range(
  "UDP ports", DEFAULT_PORTS, "UDP ports whose datagrams are all Canopy's, like 4040-4043", 65535
)

local function address_text(address)
  if address >= GROUP_BIT then
    return string.format("group %d", address - GROUP_BIT)
  elseif address == 0 then
    return "unspecified"
  end
  return string.format("%d.%d", math.floor(address / 0x10000), address % 0x10000)
end

local function hex(range)
  return range:bytes():tohex(true)
end

local function plural(count, noun)
  return string.format("%d %s%s", count, noun, count == 1 and "" or "s")
end

-- One datagram while it is being dissected: `at` is the next byte, `stop` the end of the payload.
local Cursor = {}
Cursor.__index = Cursor

function Cursor:left()
  return self.stop - self.at
end

-- The next `count` bytes; the caller has checked that they are there.
function Cursor:take(count)
  local range = self.tvb(self.at, count)
  self.at = self.at + count
  return range
end

-- Notes why a receiver drops the packet. What the capture cut off is not the packet's fault.
function Cursor:fault(tree, text)
  self.faulty = true
  if self.cut then
    return "[cut short by the capture]"
  end
  tree:add_proto_expert_info(e.malformed, text)
  return string.format("[malformed: %s]", text)
end

local function add_address(tree, field, parts, range)
  local address = range:uint()
  local item = tree:add(field, range)
  item:append_text(string.format(" (%s)", address_text(address)))
  if address >= GROUP_BIT then
    item:add(f.group, range)
  elseif parts and address ~= 0 then
    item:add(parts.site, range)
    item:add(parts.endpoint, range)
  end
  return address, item
end

local SRC_PARTS = { site = f.src_site, endpoint = f.src_endpoint }
local DST_PARTS = { site = f.dst_site, endpoint = f.dst_endpoint }

-- Adds fields of fixed width, { field, length } each, as far as the payload reaches. Returns their
-- ranges, in order, and what is wrong, if anything is.
local function add_fixed(cursor, tree, need, layout)
  local short = cursor:left() < need
  local have = cursor:left()
  local ranges = {}
  for index, field in ipairs(layout) do
    if cursor:left() < field[2] then
      break
    end
    ranges[index] = cursor:take(field[2])
    if field[1] == f.address then
      add_address(tree, f.address, nil, ranges[index])
    else
      tree:add(field[1], ranges[index])
    end
  end
  if short then
    return ranges, cursor:fault(tree, string.format("body of %d bytes, needs %d", have, need))
  end
  return ranges, nil
end

local function add_record(cursor, tree, number)
  if cursor:left() < RECORD_HEADER_LEN then
    return nil, cursor:fault(tree, string.format("record %d ends inside its header", number))
  end
  local start = cursor.at
  local length = cursor:take(2)
  local level = cursor:take(1)
  local flags = cursor:take(1)
  local src = cursor:take(4)
  local dst = cursor:take(4)
  local payload_len = length:uint()
  local whole = payload_len <= cursor:left()
  local shown = whole and payload_len or cursor:left()
  local is_filler = flags:uint() >= FILLER

  local item = tree:add(f.record, cursor.tvb(start, RECORD_HEADER_LEN + shown))
  item:add(f.record_length, length)
  item:add(f.record_level, level)
  local bits = item:add(f.record_flags, flags)
  bits:add(f.record_echo, flags)
  bits:add(f.record_filler, flags)
  local from = add_address(item, f.record_src, nil, src)
  local to = add_address(item, f.record_dst, nil, dst)
  if shown > 0 then
    item:add(f.record_payload, cursor:take(shown))
  end
  if is_filler then
    item:set_text(string.format("Record %d: filler, %s", number, plural(payload_len, "byte")))
  else
    item:set_text(string.format(
      "Record %d: %s → %s, level %d, %s", number, address_text(from), address_text(to),
      level:uint(), plural(payload_len, "byte")
    ))
  end
  if not whole then
    return nil, cursor:fault(item, string.format("record %d runs over the end", number))
  end
  return is_filler, nil
end

local function dissect_bundle(cursor, tree)
  local updates, fillers, fault = 0, 0, nil
  while cursor:left() > 0 and not fault do
    local is_filler
    is_filler, fault = add_record(cursor, tree, updates + fillers + 1)
    if is_filler then
      fillers = fillers + 1
    elseif not fault then
      updates = updates + 1
    end
  end
  tree:add(f.updates, updates):set_generated()
  tree:add(f.fillers, fillers):set_generated()
  local info = plural(updates, "update")
  if fillers > 0 then
    info = info .. string.format(" and %s", plural(fillers, "filler record"))
  end
  return info, fault
end

-- A section: two bytes that say what happens to its groups, how many they are, the groups.
-- `add_head` adds the two bytes and returns what they say, as a number and as text, and what is
-- wrong with them. Returns the number and the count of groups, or what is wrong.
local function add_section(cursor, tree, add_head)
  if cursor:left() < SECTION_LEN then
    return nil, 0, cursor:fault(tree, "a section ends inside its header")
  end
  local start = cursor.at
  local count = cursor.tvb(start + 2, 2):uint()
  local whole = SECTION_LEN + count * 4 <= cursor:left()
  local shown = whole and count or math.floor((cursor:left() - SECTION_LEN) / 4)

  local item = tree:add(f.section, cursor.tvb(start, SECTION_LEN + shown * 4))
  local what, text, fault = add_head(cursor, item, plural(count, "group"))
  item:set_text(text)
  item:add(f.section_count, cursor:take(2))
  for _ = 1, shown do
    item:add(f.group, cursor:take(4))
  end
  if not whole and not fault then
    fault = cursor:fault(item, "a section runs over the end")
  end
  if fault then
    return nil, 0, fault
  end
  return what, count, nil
end

-- The sequence number and the sections that tile the rest. `take` is told what each section says
-- and how many groups it has. Returns the Info text of the number, or what is wrong.
local function add_sections(cursor, tree, add_head, take)
  local ranges, fault = add_fixed(cursor, tree, 4, { { f.sequence, 4 } })
  if fault then
    return "", fault
  end
  while cursor:left() > 0 and not fault do
    local what, count
    what, count, fault = add_section(cursor, tree, add_head)
    if what then
      take(what, count)
    end
  end
  return string.format("#%d", ranges[1]:uint()), fault
end

local function add_change(cursor, item, groups)
  local operation = cursor:take(1)
  local level = cursor:take(1)
  item:add(f.operation, operation)
  item:add(f.section_level, level)
  local name = OPERATIONS[operation:uint()]
  local at_level = operation:uint() == 1 and string.format(" at level %d", level:uint()) or ""
  local text = string.format("%s %s%s", name or "Unknown operation on", groups, at_level)
  local fault
  if not name then
    fault = cursor:fault(item, string.format("unknown operation %d", operation:uint()))
  end
  return operation:uint(), text, fault
end

local function dissect_subscribe(cursor, tree)
  local changes = { [0] = 0, [1] = 0 }
  local number, fault = add_sections(cursor, tree, add_change, function(operation, count)
    changes[operation] = changes[operation] + count
  end)
  if number == "" then
    return "", fault
  end
  return string.format("%s, add %d, drop %d", number, changes[1], changes[0]), fault
end

local function reason_text(reasons, number)
  return reasons[number] or string.format("reason %d", number)
end

local function add_refusal(cursor, item, groups)
  local reason = cursor:take(1)
  item:add(f.table_full, reason)
  item:add(f.reserved, cursor:take(1))
  local text = string.format("%s refused: %s", groups, reason_text(TABLE_FULL, reason:uint()))
  return reason:uint(), text, nil
end

local function dissect_subscribe_ack(cursor, tree)
  local reasons, counts = {}, {}
  local info, fault = add_sections(cursor, tree, add_refusal, function(reason, count)
    if not counts[reason] then
      table.insert(reasons, reason)
    end
    counts[reason] = (counts[reason] or 0) + count
  end)
  for _, reason in ipairs(reasons) do
    local why = reason_text(TABLE_FULL, reason)
    info = info .. string.format(", %d refused (%s)", counts[reason], why)
  end
  return info, fault
end

local function dissect_connect(cursor, tree)
  local layout = {
    { f.nonce, 8 }, { f.cookie, 16 }, { f.suite, 1 }, { f.reserved, 1 }, { f.token_length, 2 },
  }
  local ranges, fault = add_fixed(cursor, tree, 28, layout)
  if fault then
    return "", fault
  end
  local token_len = ranges[5]:uint()
  if token_len > cursor:left() then
    fault = cursor:fault(tree, "the token runs over the end")
  elseif token_len > 0 then
    tree:add(f.token, cursor:take(token_len))
  end
  local info = string.format(
    "nonce %s, suite %d, token of %s", hex(ranges[1]), ranges[3]:uint(), plural(token_len, "byte")
  )
  return info, fault
end

-- A body of fixed-width fields. `say` makes the Info text from their ranges.
local function fixed(need, layout, say)
  return function(cursor, tree)
    local ranges, fault = add_fixed(cursor, tree, need, layout)
    if fault then
      return "", fault
    end
    return say(ranges), nil
  end
end

local function say_nonce(ranges)
  return "nonce " .. hex(ranges[1])
end

local function say_stamp(ranges)
  return "stamp " .. tostring(ranges[1]:uint64())
end

local function say_nothing()
  return ""
end

local function dissect_payload(cursor, tree)
  local length = cursor:left()
  if length > 0 then
    tree:add(f.payload, cursor:take(length))
  end
  return plural(length, "byte"), nil
end

local BODIES = {
  [DATA] = dissect_payload,
  [BUNDLE] = dissect_bundle,
  [SUBSCRIBE] = dissect_subscribe,
  [SUBSCRIBE_ACK] = dissect_subscribe_ack,
  [ROUTE_REPLY] = dissect_payload,
  [HELLO] = fixed(32, { { f.nonce, 8 } }, say_nonce),
  [COOKIE] = fixed(24, { { f.nonce, 8 }, { f.cookie, 16 } }, say_nonce),
  [CONNECT] = dissect_connect,
  [CONNECTED] = fixed(40, {
    { f.nonce, 8 }, { f.address, 4 }, { f.lifetime, 4 }, { f.keepalive, 4 },
    { f.subscription, 4 }, { f.secret, 16 },
  }, function(ranges)
    return string.format("nonce %s, as %s", hex(ranges[1]), address_text(ranges[2]:uint()))
  end),
  [REFUSED] = fixed(9, { { f.nonce, 8 }, { f.refused, 1 } }, function(ranges)
    local reason = reason_text(REFUSED_REASONS, ranges[2]:uint())
    return string.format("nonce %s: %s", hex(ranges[1]), reason)
  end),
  [KEEPALIVE] = fixed(8, { { f.stamp, 8 } }, say_stamp),
  [KEEPALIVE_ACK] = fixed(8, { { f.stamp, 8 } }, say_stamp),
  [LEAVE] = fixed(1, { { f.leave, 1 } }, function(ranges)
    return reason_text(LEAVE_REASONS, ranges[1]:uint())
  end),
  [LEFT] = fixed(0, {}, say_nothing),
  [CHALLENGE] = fixed(16, { { f.cookie, 16 } }, say_nothing),
  [REBIND] = fixed(32, { { f.cookie, 16 }, { f.proof, 16 } }, say_nothing),
}

-- The route as the Info column tells it. Before there is an address there is nothing to tell: the
-- source of a hello or a connect is the low half of its nonce.
local function route_text(kind, src, dst, level)
  if kind == HELLO or kind == CONNECT or (src == 0 and dst == 0) then
    return ""
  elseif dst == 0 then
    return " " .. address_text(src) .. " → relay"
  elseif src == 0 then
    return " relay → " .. address_text(dst)
  end
  local at_level = kind == DATA and string.format(" level %d", level) or ""
  return string.format(" %s → %s%s", address_text(src), address_text(dst), at_level)
end

local function add_header(cursor, tree)
  local header = {}
  tree:add(f.version, cursor:take(1))
  local kind = cursor:take(1)
  header.kind = kind:uint()
  tree:add(f.kind, kind)
  local flags = cursor:take(1)
  local bits = tree:add(f.flags, flags)
  for _, bit in ipairs({ f.echo, f.route_request, f.shaker, f.filler }) do
    bits:add(bit, flags)
  end
  local level = cursor:take(1)
  header.level = level:uint()
  tree:add(f.level, level)
  local comtree = cursor:take(4)
  header.comtree = comtree:uint()
  tree:add(f.comtree, comtree)
  local src = cursor:take(4)
  header.src = src:uint()
  if header.kind == HELLO or header.kind == CONNECT then
    tree:add(f.src, src):append_text(" (low half of the nonce)")
  else
    add_address(tree, f.src, SRC_PARTS, src)
  end
  header.dst = add_address(tree, f.dst, DST_PARTS, cursor:take(4))
  local length = cursor:take(2)
  header.length = length:uint()
  tree:add(f.length, length)
  tree:add(f.hop_limit, cursor:take(1))
  tree:add(f.reserved, cursor:take(1))
  return header
end

-- Another version's layout is unknown, but for the nonce of a hello, which never moves.
local function dissect_other_version(cursor, tree)
  tree:add(f.version, cursor.tvb(0, 1))
  tree:add_proto_expert_info(e.version)
  local info = string.format("Version 0x%02x", cursor.tvb(0, 1):uint())
  if cursor.stop >= HEADER_LEN + 32 and cursor.tvb(1, 1):uint() == HELLO then
    tree:add(f.kind, cursor.tvb(1, 1))
    tree:add(f.nonce, cursor.tvb(HEADER_LEN, 8))
    info = info .. " Hello nonce " .. hex(cursor.tvb(HEADER_LEN, 8))
  end
  return info
end

-- Adds everything behind the header. Returns the Info text.
local function dissect_body(cursor, tree, header)
  local have = cursor.stop
  local fault
  if HEADER_LEN + header.length <= have then
    cursor.stop = HEADER_LEN + header.length
  else
    fault = cursor:fault(tree, string.format(
      "length %d, but %s behind the header", header.length, plural(have - HEADER_LEN, "byte")
    ))
  end
  local said, body_fault = BODIES[header.kind](cursor, tree)
  if cursor:left() > 0 and not cursor.faulty then
    tree:add(f.ignored, cursor:take(cursor:left()))
  end
  if cursor.stop < have then
    tree:add(f.padding, cursor.tvb(cursor.stop, have - cursor.stop))
  end
  if cursor.reported > MAX_DATAGRAM then
    fault = fault or cursor:fault(tree, string.format("longer than %d bytes", MAX_DATAGRAM))
  end
  local route = route_text(header.kind, header.src, header.dst, header.level)
  local parts = { KINDS[header.kind] .. route, "comtree " .. header.comtree }
  if said ~= "" then
    table.insert(parts, said)
  end
  local info = table.concat(parts, ", ")
  fault = fault or body_fault
  return fault and (info .. " " .. fault) or info
end

-- Returns the Info text, and whether the packet is one that a receiver would take.
local function dissect(tvb, tree)
  local cursor = setmetatable({
    tvb = tvb,
    at = 0,
    stop = tvb:len(),
    reported = tvb:reported_len(),
    cut = tvb:len() < tvb:reported_len(),
    faulty = false,
  }, Cursor)
  if cursor.cut then
    tree:add_proto_expert_info(e.cut)
  end
  if cursor.stop == 0 then
    return cursor:fault(tree, "empty"), false
  elseif tvb(0, 1):uint() ~= VERSION then
    return dissect_other_version(cursor, tree), false
  elseif cursor.stop < HEADER_LEN then
    tree:add(f.version, tvb(0, 1))
    if cursor.stop > 1 then
      tree:add(f.kind, tvb(1, 1))
    end
    return cursor:fault(tree, string.format("header of %d bytes", cursor.stop)), false
  end
  local header = add_header(cursor, tree)
  if not KINDS[header.kind] then
    tree:add_proto_expert_info(e.kind)
    return string.format("Unknown kind 0x%02x, comtree %d", header.kind, header.comtree), false
  end
  local info = dissect_body(cursor, tree, header)
  return info, not cursor.faulty
end

local function show(tvb, pinfo, root)
  pinfo.cols.protocol = "Canopy"
  local tree = root:add(canopy, tvb())
  local info, sound = dissect(tvb, tree)
  pinfo.cols.info = info
  tree:append_text(", " .. info)
  return sound
end

function canopy.dissector(tvb, pinfo, root)
  show(tvb, pinfo, root)
  return tvb:len()
end

local function heuristic(tvb, pinfo, root)
  if tvb:len() < 2 or tvb(0, 1):uint() ~= VERSION or not KINDS[tvb(1, 1):uint()] then
    return false
  end
  -- A sound packet vouches for its flow, so that unknown kinds on it are named too.
  if show(tvb, pinfo, root) then
    pinfo.conversation = canopy
  end
  return true
end

local udp_ports = DissectorTable.get("udp.port")
udp_ports:add_for_decode_as(canopy)
canopy:register_heuristic("udp", heuristic)

-- The preference as it stands in the table; prefs_changed is only called when it differs.
local registered = DEFAULT_PORTS
udp_ports:add(registered, canopy)

function canopy.prefs_changed()
  local wanted = canopy.prefs.ports
  if wanted == registered then
    return
  end
  if registered ~= "" then
    udp_ports:remove(registered, canopy)
  end
  if wanted ~= "" then
    udp_ports:add(wanted, canopy)
  end
  registered = wanted
end
