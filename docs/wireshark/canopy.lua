-- Wireshark dissector for Canopy, wire version 1. The format is described in docs/wire.md.
--
-- Install: copy this file to the folder that Wireshark names under
--   Help > About Wireshark > Folders > Personal Lua Plugins
-- and press Ctrl+Shift+L, or give it to one run:
--   wireshark -X lua_script:canopy.lua      tshark -X lua_script:canopy.lua -r FILE
--
-- All datagrams on UDP port 4040, a relay's default, are taken for Canopy's. On other ports a
-- packet is found by its first byte, its kind and its flags, and a sealed one by its first byte and
-- its length. For a port where another dissector comes first (RTP's packets may have the same first
-- byte), or to see datagrams of an unknown kind, name the port under
--   Preferences > Protocols > Canopy > UDP ports
-- or choose Canopy under "Decode As"; for tshark: -o canopy.ports:4040-4043 or
-- -d udp.port==4043,canopy
--
-- Filters: canopy.group == 7 finds every update to group 7, and every change and refusal of a
-- subscription to it. canopy.malformed finds what a relay would drop.
--
-- The packets of a session are sealed, and so may be updates for all members of a comtree. This script
-- has no keys: of them it shows what is in clear. The same holds for the messages of the handshake in connect and connected.
--
-- A record leaves out what the record before it says already. All its fields are shown with their
-- values; Wireshark puts those that were left out in brackets.
--
-- Every read is preceded by a check of the bytes left: a hostile packet is shown as malformed and
-- never raises a Lua error. Works on Wireshark 4.0 and later, whose Lua is 5.2 or 5.4.

-- The first five bits of the first byte: 10 and version 1. The last three are the class.
local VERSION_BITS = 0x11
local DEFAULT_PORTS = "4040"
local HEADER_LEN = 16
-- Of a sealed packet: what is in clear before its ciphertext, and the tag behind it. The rest of the
-- header is part of the ciphertext.
local CLEAR_LEN, TAG_LEN = 8, 16
local SEALED_LEN = HEADER_LEN + TAG_LEN
local KIND_AT, FLAGS_AT = 8, 11
-- These do not move from version to version. The first two bits say that it is Canopy's.
local FIRST_BITS = 2
local NONCE_AT, REASON_AT, HELLO_LEN = 16, 24, 72
local MAX_DATAGRAM = 1452
local SECTION_LEN = 4
-- What a section says of each group: four bytes, and five where the operation gives weights.
local GROUP_LEN = 4
local WEIGHTED_LEN = { [2] = 5 }
local GROUP_BIT = 0x80000000
local NO_SESSION = 0xffffff

local UPDATES, SUBSCRIBE, SUBSCRIBE_ACK = 0x01, 0x03, 0x04
local ROUTE_REPLY, LINK_HELLO, WAY_SEARCH = 0x08, 0x09, 0x0a
local LINK_STATE, LINK_STATE_ACK = 0x0b, 0x0c
local HELLO, COOKIE, CONNECT, CONNECTED, REFUSED = 0x10, 0x11, 0x12, 0x13, 0x14
local KEEPALIVE, KEEPALIVE_ACK, LEAVE, LEFT = 0x15, 0x16, 0x17, 0x18
local CHALLENGE, REBIND, UNKNOWN, GONE = 0x19, 0x1a, 0x1b, 0x1c
local REQUEST, RESPONSE = 0x20, 0x21
local BUSY = 0x1d
local GROUP_KEY, GROUP_KEY_HELD = 0x24, 0x25
local PROBE, REPORT = 0x28, 0x29

local KINDS = {
  [UPDATES] = "Updates",
  [SUBSCRIBE] = "Subscribe",
  [SUBSCRIBE_ACK] = "Subscribe-ack",
  [ROUTE_REPLY] = "Route-reply",
  [LINK_HELLO] = "Link-hello",
  [WAY_SEARCH] = "Way-search",
  [LINK_STATE] = "Link-state",
  [LINK_STATE_ACK] = "Link-state-ack",
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
  [UNKNOWN] = "Unknown",
  [GONE] = "Gone",
  [REQUEST] = "Request",
  [RESPONSE] = "Response",
  [BUSY] = "Busy",
  [GROUP_KEY] = "Group-key",
  [GROUP_KEY_HELD] = "Group-key-held",
  [PROBE] = "Probe",
  [REPORT] = "Report",
}

local STRANGER, SESSION, SEALED, GROUP = 0, 1, 2, 3
local CLASSES = {
  [STRANGER] = "stranger", [SESSION] = "session", [SEALED] = "sealed", [GROUP] = "group",
}
local SUITES = { [0] = "AES-128-GCM", [1] = "ChaCha20-Poly1305" }
-- All other kinds are of a session.
local IS_OF_STRANGERS = {
  [HELLO] = true, [COOKIE] = true, [CONNECT] = true, [CONNECTED] = true, [REFUSED] = true,
  [UNKNOWN] = true,
}

-- Before there is a session, the low bits of the nonce stand in its place.
local IS_BEFORE_SESSION = {
  [HELLO] = true, [COOKIE] = true, [CONNECT] = true, [CONNECTED] = true, [REFUSED] = true,
}

-- Their comtree is in their message, which is sealed.
local IS_COMTREE_HIDDEN = { [CONNECT] = true, [CONNECTED] = true }

-- How a record's first byte says where its source and its destination are.
local SOURCE_FORMS = {
  [0] = "in full, and the series",
  [1] = "endpoint at the site before, and the series",
  [2] = "the one before, and the series",
  [3] = "the one before, with the next in the series",
}
local DESTINATION_FORMS = {
  [0] = "in full",
  [1] = "lower half, upper half as before",
  [2] = "the one before",
  [3] = "does not exist",
}
-- How many bytes of the address stand in the record.
local SOURCE_WIDTH = { [0] = 4, [1] = 2, [2] = 0, [3] = 0 }
local DESTINATION_WIDTH = { [0] = 4, [1] = 2, [2] = 0 }

local OPERATIONS = { [0] = "Drop", [1] = "Add", [2] = "Add with weights" }
local DROP, ADD, ADD_WEIGHTED = 0, 1, 2
local SUBSCRIBE_REFUSALS = {
  [1] = "table full",
  [2] = "participant's share full",
  [3] = "not allowed",
  [4] = "too many new groups",
}
local EXCESSES = {
  [1] = "updates",
  [2] = "updates of the comtree",
  [3] = "subscriptions",
  [4] = "keepalives",
  [5] = "requests",
}
local BOUNDS = { [0] = "nothing", [1] = "admission", [2] = "wish", [3] = "path" }
local LEAVE_REASONS = {
  [0] = "done",
  [1] = "draining",
  [2] = "thrown out",
  [3] = "token revoked",
  [4] = "elsewhere",
}
local REQUESTS = { [1] = "renew", [2] = "throw out", [3] = "restrict", [4] = "restore" }
local MAX_TOKEN_LEN = 1000
local MAX_RELAY_NAME, MAX_LINK_STATES, MAX_LINK_STATE_ACKS = 64, 64, 24
local REQUEST_STATUSES = {
  [0] = "done",
  [1] = "not allowed",
  [2] = "unknown address",
  [3] = "token not taken",
  [4] = "full",
}
local WAY_WORDS = {
  [0] = "asks",
  [1] = "is answered by %s",
  [2] = "is answered by %s, which is taken",
  [3] = "was answered by %s, which has ended",
}
local LINK_FORMS = { [0] = "all of them", [1] = "those that are up" }
local ROUTE_ANSWERS = { [0] = "nobody has it", [1] = "this way leads there" }
local REFUSED_REASONS = {
  [1] = "sessions full",
  [2] = "unknown comtree",
  [3] = "another version",
  [4] = "credentials",
  [5] = "draining",
  [6] = "not made for the relay's key",
  [7] = "token not taken",
  [8] = "too many from there",
  [9] = "address taken",
  [10] = "cannot share its ip:port",
}

local canopy = Proto("canopy", "Canopy")

local f = {
  first = ProtoField.uint8("canopy.first", "First byte", base.HEX),
  version = ProtoField.uint8("canopy.version", "Version", base.DEC, nil, 0x38),
  class = ProtoField.uint8("canopy.class", "Class", base.DEC, CLASSES, 0x07),
  session = ProtoField.uint24("canopy.session", "Session"),
  counter = ProtoField.uint32("canopy.counter", "Counter"),
  kind = ProtoField.uint8("canopy.kind", "Kind", base.HEX, KINDS),
  hop_limit = ProtoField.uint8("canopy.hop_limit", "Hop limit"),
  records = ProtoField.uint8("canopy.records", "Records"),
  flags = ProtoField.uint8("canopy.flags", "Flags", base.HEX),
  comtree = ProtoField.uint32("canopy.comtree", "Comtree"),
  reserved = ProtoField.bytes("canopy.reserved", "Reserved"),
  ignored = ProtoField.bytes("canopy.ignored", "Ignored bytes"),
  padding = ProtoField.bytes("canopy.padding", "Padding"),
  group = ProtoField.uint32("canopy.group", "Group", base.DEC, nil, 0x7fffffff),

  group_key = ProtoField.uint24("canopy.group_key", "Group key"),
  sealed = ProtoField.bytes("canopy.sealed", "Sealed bytes"),
  tag = ProtoField.bytes("canopy.tag", "Tag"),

  record = ProtoField.none("canopy.record", "Record"),
  form = ProtoField.uint8("canopy.record.form", "Form", base.HEX),
  form_source = ProtoField.uint8(
    "canopy.record.form.source", "Source", base.DEC, SOURCE_FORMS, 0x03
  ),
  form_destination = ProtoField.uint8(
    "canopy.record.form.destination", "Destination", base.DEC, DESTINATION_FORMS, 0x0c
  ),
  level_same = ProtoField.bool("canopy.record.form.level_same", "Level as before", 8, nil, 0x10),
  length_same = ProtoField.bool("canopy.record.form.length_same", "Length, weight and object as before", 8, nil, 0x20),
  echo = ProtoField.bool("canopy.record.echo", "Echo or route-request", 8, nil, 0x40),
  filler = ProtoField.bool("canopy.record.filler", "Filler", 8, nil, 0x80),
  src = ProtoField.uint32("canopy.record.src", "Source", base.HEX),
  src_site = ProtoField.uint32("canopy.record.src.site", "Site", base.DEC, nil, 0x7fff0000),
  src_endpoint = ProtoField.uint32("canopy.record.src.endpoint", "Endpoint", base.DEC, nil, 0xffff),
  series = ProtoField.uint16("canopy.record.series", "Series"),
  dst = ProtoField.uint32("canopy.record.dst", "Destination", base.HEX),
  dst_site = ProtoField.uint32("canopy.record.dst.site", "Site", base.DEC, nil, 0x7fff0000),
  dst_endpoint = ProtoField.uint32("canopy.record.dst.endpoint", "Endpoint", base.DEC, nil, 0xffff),
  level = ProtoField.uint8("canopy.record.level", "Level"),
  length = ProtoField.uint16("canopy.record.length", "Length"),
  weight = ProtoField.uint8("canopy.record.weight", "Weight"),
  object = ProtoField.uint16("canopy.record.object", "Object"),
  record_payload = ProtoField.bytes("canopy.record.payload", "Payload"),
  updates = ProtoField.uint16("canopy.updates", "Updates"),
  fillers = ProtoField.uint16("canopy.fillers", "Filler records"),

  sequence = ProtoField.uint32("canopy.sequence", "Sequence"),
  section = ProtoField.none("canopy.section", "Section"),
  operation = ProtoField.uint8("canopy.section.operation", "Operation", base.DEC, OPERATIONS),
  section_level = ProtoField.uint8("canopy.section.level", "Level"),
  section_weight = ProtoField.uint8("canopy.section.weight", "Weight"),
  section_count = ProtoField.uint16("canopy.section.count", "Groups"),
  table_full = ProtoField.uint8("canopy.section.reason", "Reason", base.DEC, SUBSCRIBE_REFUSALS),

  nonce = ProtoField.uint64("canopy.nonce", "Nonce", base.HEX),
  cookie = ProtoField.bytes("canopy.cookie", "Cookie"),
  relay_key = ProtoField.bytes("canopy.relay_key", "Relay's public key"),
  message = ProtoField.bytes("canopy.message", "Noise message"),
  refused = ProtoField.uint8("canopy.refused.reason", "Reason", base.DEC, REFUSED_REASONS),
  leave = ProtoField.uint8("canopy.leave.reason", "Reason", base.DEC, LEAVE_REASONS),
  stamp = ProtoField.uint64("canopy.stamp", "Stamp"),
  path_stamp = ProtoField.uint64("canopy.path_stamp", "Path stamp", base.HEX),
  request = ProtoField.uint8("canopy.request", "Request", base.DEC, REQUESTS),
  request_acts = ProtoField.uint8("canopy.request.acts", "Acts", base.HEX),
  request_token_length = ProtoField.uint16("canopy.request.token_length", "Token length"),
  request_whom = ProtoField.uint32("canopy.request.whom", "Member", base.HEX),
  request_first = ProtoField.uint32("canopy.request.first", "First group", base.DEC, nil, 0x7fffffff),
  request_last = ProtoField.uint32("canopy.request.last", "Last group", base.DEC, nil, 0x7fffffff),
  request_token = ProtoField.bytes("canopy.request.token", "Token"),
  status = ProtoField.uint8("canopy.response.status", "Status", base.DEC, REQUEST_STATUSES),
  key_number = ProtoField.uint32("canopy.group_key.number", "Number of the key"),
  key_lacks = ProtoField.uint32("canopy.group_key.lacks", "Number of the key that is lacking"),
  key_suite = ProtoField.uint8("canopy.group_key.suite", "Suite", base.DEC, SUITES),
  key_first = ProtoField.uint32("canopy.group_key.first", "First counter"),
  key_secret = ProtoField.bytes("canopy.group_key.secret", "Secret"),
  unknown_echo = ProtoField.uint64("canopy.unknown.echo", "Echo", base.HEX),
  excess = ProtoField.uint8("canopy.busy.what", "Too much of", base.DEC, EXCESSES),
  dropped = ProtoField.uint32("canopy.busy.dropped", "Dropped"),
  probe_number = ProtoField.uint32("canopy.probe.number", "Number of the probe"),
  probe_clock = ProtoField.uint32("canopy.probe.clock", "Relay's clock (µs)"),
  traffic_datagrams = ProtoField.uint32("canopy.traffic.datagrams", "Datagrams with updates"),
  traffic_bytes = ProtoField.uint32("canopy.traffic.bytes", "Their bytes"),
  probe_share = ProtoField.uint16("canopy.probe.share", "Updates sent (of 1000)"),
  probe_because = ProtoField.uint8("canopy.probe.because", "Bounded by", base.DEC, BOUNDS),
  probe_left_out = ProtoField.uint32("canopy.probe.left_out", "Updates left out"),
  probe_budget = ProtoField.uint64("canopy.probe.budget", "Budget (bit/s)"),
  report_clock = ProtoField.uint32("canopy.report.own_clock", "Participant's clock (µs)"),
  report_held = ProtoField.uint32("canopy.report.held", "Held (µs)"),
  report_updates = ProtoField.uint32("canopy.report.updates", "Updates asked for (1/s)"),
  report_bits = ProtoField.uint64("canopy.report.bits", "Bits asked for (bit/s)"),
  gone = ProtoField.uint32("canopy.gone.address", "Address", base.HEX),
  hello_echo = ProtoField.uint64("canopy.link_hello.echo", "Echo"),
  hello_held = ProtoField.uint32("canopy.link_hello.held", "Held (µs)"),
  hello_sent = ProtoField.uint32("canopy.link_hello.sent", "Packets sent"),
  hello_loss = ProtoField.uint16("canopy.link_hello.loss", "Loss (of 65535)"),
  hello_lifetime = ProtoField.uint32("canopy.link_hello.lifetime", "Lifetime of subscriptions (ms)"),
  way_seeker = ProtoField.uint16("canopy.way_search.seeker", "Seeker"),
  way_number = ProtoField.uint32("canopy.way_search.number", "Number"),
  way_word = ProtoField.uint8("canopy.way_search.word", "Word"),
  way_answer = ProtoField.uint64("canopy.way_search.answer", "Answer"),
  state_relay = ProtoField.bytes("canopy.link_state.relay", "Relay"),
  state_part = ProtoField.uint8("canopy.link_state.part", "Part"),
  state_life = ProtoField.uint64("canopy.link_state.life", "Life"),
  state_number = ProtoField.uint32("canopy.link_state.number", "Number"),
  state_age = ProtoField.uint16("canopy.link_state.age", "Age (s)"),
  state_form = ProtoField.uint8("canopy.link_state.form", "Links", base.DEC, LINK_FORMS),
  state_free = ProtoField.uint32("canopy.link_state.free", "Most that is free (kbit/s)"),
  state_name_length = ProtoField.uint8("canopy.link_state.name_length", "Length of the name"),
  state_name = ProtoField.string("canopy.link_state.name", "Name"),
  state_count = ProtoField.uint8("canopy.link_state.count", "Count"),
  state_link = ProtoField.uint32("canopy.link_state.link", "Link"),
  state_up = ProtoField.uint8("canopy.link_state.up", "Up"),
  state_delay = ProtoField.uint32("canopy.link_state.delay", "Delay one way (µs)"),
  state_loss = ProtoField.uint8("canopy.link_state.loss", "Loss (of 255)"),
  state_link_free = ProtoField.uint32("canopy.link_state.link_free", "Free (kbit/s)"),
  state_held = ProtoField.uint8("canopy.link_state.held", "Held from so many links away"),
  route_to = ProtoField.uint32("canopy.route_reply.to", "To", base.HEX),
  route_about = ProtoField.uint32("canopy.route_reply.about", "About", base.HEX),
  route_answer = ProtoField.uint8("canopy.route_reply.answer", "Answer", base.DEC, ROUTE_ANSWERS),
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

-- One datagram while it is being dissected: `at` is the next byte, `stop` the end of what was
-- captured of it.
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

-- Adds a field of the `value` that it has once it is resolved: at its bytes, or marked as generated
-- if there are none.
local function add_resolved(tree, field, range, value)
  if range then
    return tree:add(field, range, value)
  end
  return tree:add(field, value):set_generated()
end

-- Adds an address, with the group or the site and endpoint that it names.
local function add_address(tree, fields, range, value)
  local item = add_resolved(tree, fields.whole, range, value)
  if value == 0 then
    item:append_text(string.format(" (%s)", fields.unspecified))
    return
  end
  local leans = range and range:len() < 4 and ", its upper half from the record before" or ""
  item:append_text(string.format(" (%s%s)", address_text(value), leans))
  if value >= GROUP_BIT then
    add_resolved(item, f.group, range, value)
  else
    add_resolved(item, fields.site, range, value)
    add_resolved(item, fields.endpoint, range, value)
  end
end

local SRC = {
  whole = f.src, site = f.src_site, endpoint = f.src_endpoint, unspecified = "the sender",
}
local DST = {
  whole = f.dst, site = f.dst_site, endpoint = f.dst_endpoint, unspecified = "unspecified",
}

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
    tree:add(field[1], ranges[index])
  end
  if short then
    return ranges, cursor:fault(tree, string.format("body of %d bytes, needs %d", have, need))
  end
  return ranges, nil
end

-- Before the first record of a packet.
local FIRST_BEFORE = {
  src = 0, series = 0xffff, dst = 0, level = 0, length = 0, weight = 128, object = 0,
}
-- A length of two bytes has 13 bits. The others say that it has two bytes, and what follows it.
local LENGTH_END = 0x2000
local WEIGHT_BIT, OBJECT_BIT = 1, 2

-- Reads what stands behind a length of two bytes. Returns what is wrong, if anything is.
local function read_behind_length(cursor, head)
  if not head.length or head.length:len() < 2 then
    return nil
  end
  for _, entry in ipairs({ { "weight", WEIGHT_BIT, 1 }, { "object", OBJECT_BIT, 2 } }) do
    local name, bit, width = entry[1], entry[2], entry[3]
    if head.length:bitfield(bit, 1) == 1 then
      if width > cursor:left() then
        return "ends inside its head"
      end
      head[name] = cursor:take(width)
    end
  end
  return nil
end

-- Reads a record's head. Returns the ranges of the fields that stand in it, and what is wrong.
local function read_head(cursor)
  local form = cursor:take(1)
  local head = { form = form }
  local source, destination = form:bitfield(6, 2), form:bitfield(4, 2)
  if not DESTINATION_WIDTH[destination] then
    return head, string.format("has a destination of form %d", destination)
  end
  local widths = {
    { "src", SOURCE_WIDTH[source] },
    { "series", source == 3 and 0 or 2 },
    { "dst", DESTINATION_WIDTH[destination] },
    { "level", 1 - form:bitfield(3, 1) },
    { "length", 1 - form:bitfield(2, 1) },
  }
  for _, entry in ipairs(widths) do
    local name, width = entry[1], entry[2]
    if name == "length" and width <= cursor:left() and width > 0 then
      -- The first byte's top bit says that there is a second.
      width = cursor.tvb(cursor.at, 1):bitfield(0, 1) + 1
    end
    if width > cursor:left() then
      return head, "ends inside its head"
    elseif width > 0 then
      head[name] = cursor:take(width)
    end
  end
  return head, read_behind_length(cursor, head)
end

-- A record's values: what stands in its head, and for the rest what the record before it says.
local function resolve(head, before)
  local function address(name)
    local range = head[name]
    if not range then
      return before[name]
    elseif range:len() < 4 then
      return before[name] - before[name] % 0x10000 + range:uint()
    end
    return range:uint()
  end
  local length = before.length
  if head.length then
    length = head.length:uint() % LENGTH_END
  end
  return {
    src = address("src"),
    series = head.series and head.series:uint() or (before.series + 1) % 0x10000,
    dst = address("dst"),
    level = head.level and head.level:uint() or before.level,
    length = length,
    weight = head.weight and head.weight:uint() or before.weight,
    object = head.object and head.object:uint() or before.object,
    is_filler = head.form:bitfield(0, 1) == 1,
  }
end

local function add_form(item, form)
  local bits = item:add(f.form, form)
  for _, field in ipairs({
    f.form_source, f.form_destination, f.level_same, f.length_same, f.echo, f.filler,
  }) do
    bits:add(field, form)
  end
end

-- Weight and object are told where they are not what most updates have.
local function record_text(record)
  local text = string.format(
    "%s → %s, level %d, series %d, %s", record.src == 0 and "sender" or address_text(record.src),
    address_text(record.dst), record.level, record.series, plural(record.length, "byte")
  )
  if record.weight ~= FIRST_BEFORE.weight then
    text = text .. string.format(", weight %d", record.weight)
  end
  if record.object ~= FIRST_BEFORE.object then
    text = text .. string.format(", object %d", record.object)
  end
  return text
end

-- Adds the record at the cursor. Returns its values, or what is wrong.
local function add_record(cursor, tree, number, before)
  if cursor:left() == 0 then
    return nil, cursor:fault(tree, string.format("record %d is missing", number))
  end
  local start = cursor.at
  local head, why = read_head(cursor)
  if why then
    local item = tree:add(f.record, cursor.tvb(start, cursor.at - start))
    item:set_text(string.format("Record %d", number))
    add_form(item, head.form)
    return nil, cursor:fault(item, string.format("record %d %s", number, why))
  end
  local record = resolve(head, before)
  local shown = math.min(record.length, cursor:left())

  local item = tree:add(f.record, cursor.tvb(start, cursor.at - start + shown))
  local what = record.is_filler and "filler for " or ""
  item:set_text(string.format("Record %d: %s%s", number, what, record_text(record)))
  add_form(item, head.form)
  add_address(item, SRC, head.src, record.src)
  add_resolved(item, f.series, head.series, record.series)
  add_address(item, DST, head.dst, record.dst)
  add_resolved(item, f.level, head.level, record.level)
  add_resolved(item, f.length, head.length, record.length)
  add_resolved(item, f.weight, head.weight, record.weight)
  add_resolved(item, f.object, head.object, record.object)
  if shown > 0 then
    item:add(f.record_payload, cursor:take(shown))
  end
  if shown < record.length then
    return nil, cursor:fault(item, string.format("record %d runs over the end", number))
  end
  return record, nil
end

local function dissect_updates(cursor, tree, header)
  local updates, fillers, before, fault = 0, 0, FIRST_BEFORE, nil
  for number = 1, header.records do
    local record
    record, fault = add_record(cursor, tree, number, before)
    if fault then
      break
    elseif record.is_filler then
      fillers = fillers + 1
    else
      updates = updates + 1
    end
    before = record
  end
  tree:add(f.updates, updates):set_generated()
  tree:add(f.fillers, fillers):set_generated()
  if cursor:left() > 0 and not fault then
    tree:add(f.padding, cursor:take(cursor:left()))
  end
  if header.records == 1 and updates == 1 then
    return record_text(before), nil
  end
  local info = plural(updates, "update")
  if fillers > 0 then
    info = info .. string.format(" and %s", plural(fillers, "filler record"))
  end
  return info, fault
end

-- A section: two bytes that say what happens to its groups, how many they are, the groups.
-- `add_head` adds the two bytes and returns what they say, as a number and as text, and what is
-- wrong with them. `longer` has the first bytes of sections whose groups have weights, and how long
-- each of these is. Returns the number and the count of groups, or what is wrong.
local function add_section(cursor, tree, add_head, longer)
  if cursor:left() < SECTION_LEN then
    return nil, 0, cursor:fault(tree, "a section ends inside its header")
  end
  local start = cursor.at
  local count = cursor.tvb(start + 2, 2):uint()
  local len = longer[cursor.tvb(start, 1):uint()] or GROUP_LEN
  local whole = SECTION_LEN + count * len <= cursor:left()
  local shown = whole and count or math.floor((cursor:left() - SECTION_LEN) / len)

  local item = tree:add(f.section, cursor.tvb(start, SECTION_LEN + shown * len))
  local what, text, fault = add_head(cursor, item, plural(count, "group"))
  item:set_text(text)
  item:add(f.section_count, cursor:take(2))
  for _ = 1, shown do
    local group = item:add(f.group, cursor:take(GROUP_LEN))
    if len > GROUP_LEN then
      group:add(f.section_weight, cursor:take(len - GROUP_LEN))
    end
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
local function add_sections(cursor, tree, add_head, longer, take)
  local ranges, fault = add_fixed(cursor, tree, 4, { { f.sequence, 4 } })
  if fault then
    return "", fault
  end
  while cursor:left() > 0 and not fault do
    local what, count
    what, count, fault = add_section(cursor, tree, add_head, longer)
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
  local adds = operation:uint() == ADD or operation:uint() == ADD_WEIGHTED
  local at_level = adds and string.format(" at level %d", level:uint()) or ""
  local text = string.format("%s %s%s", name or "Unknown operation on", groups, at_level)
  local fault
  if not name then
    fault = cursor:fault(item, string.format("unknown operation %d", operation:uint()))
  end
  return operation:uint(), text, fault
end

local function dissect_subscribe(cursor, tree)
  local changes = { [DROP] = 0, [ADD] = 0, [ADD_WEIGHTED] = 0 }
  local count_change = function(operation, count)
    changes[operation] = changes[operation] + count
  end
  local number, fault = add_sections(cursor, tree, add_change, WEIGHTED_LEN, count_change)
  if number == "" then
    return "", fault
  end
  local adds = changes[ADD] + changes[ADD_WEIGHTED]
  return string.format("%s, add %d, drop %d", number, adds, changes[DROP]), fault
end

local function reason_text(reasons, number)
  return reasons[number] or string.format("reason %d", number)
end

local function add_refusal(cursor, item, groups)
  local reason = cursor:take(1)
  item:add(f.table_full, reason)
  item:add(f.reserved, cursor:take(1))
  local text = string.format("%s refused: %s", groups, reason_text(SUBSCRIBE_REFUSALS, reason:uint()))
  return reason:uint(), text, nil
end

local function dissect_subscribe_ack(cursor, tree)
  local reasons, counts = {}, {}
  local info, fault = add_sections(cursor, tree, add_refusal, {}, function(reason, count)
    if not counts[reason] then
      table.insert(reasons, reason)
    end
    counts[reason] = (counts[reason] or 0) + count
  end)
  for _, reason in ipairs(reasons) do
    local why = reason_text(SUBSCRIBE_REFUSALS, reason)
    info = info .. string.format(", %d refused (%s)", counts[reason], why)
  end
  return info, fault
end

-- A body of fixed-width fields. `say` makes the Info text from their ranges; `find_fault`, if there
-- is one, says which of their values is not allowed.
local function fixed(need, layout, say, find_fault)
  return function(cursor, tree)
    local ranges, fault = add_fixed(cursor, tree, need, layout)
    if fault then
      return "", fault
    end
    local wrong = find_fault and find_fault(ranges)
    return say(ranges), wrong and cursor:fault(tree, wrong) or nil
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

-- Fields of fixed width, { field, length } each, and behind them a message of the handshake.
local function with_message(need, layout)
  return function(cursor, tree)
    local ranges, fault = add_fixed(cursor, tree, need, layout)
    if fault then
      return "", fault
    end
    local length = cursor:left()
    if length > 0 then
      tree:add(f.message, cursor:take(length))
    end
    return string.format("%s, message of %s", say_nonce(ranges), plural(length, "byte")), nil
  end
end

-- What a member asks for, behind it a token.
local function dissect_request(cursor, tree)
  local ranges, fault = add_fixed(cursor, tree, 20, {
    { f.sequence, 4 }, { f.request, 1 }, { f.request_acts, 1 }, { f.request_token_length, 2 },
    { f.request_whom, 4 }, { f.request_first, 4 }, { f.request_last, 4 },
  })
  if fault then
    return "", fault
  end
  local sequence, what = ranges[1]:uint(), ranges[2]:uint()
  local said = string.format("number %d, %s", sequence, REQUESTS[what] or "unknown")
  local length = ranges[4]:uint()
  if length > MAX_TOKEN_LEN or length > cursor:left() then
    return said, cursor:fault(tree, string.format("a token of %s", plural(length, "byte")))
  elseif ranges[6]:uint() % GROUP_BIT > ranges[7]:uint() % GROUP_BIT then
    return said, cursor:fault(tree, "the last group comes before the first")
  elseif not REQUESTS[what] then
    return said, cursor:fault(tree, string.format("request %d", what))
  end
  if length > 0 then
    tree:add(f.request_token, cursor:take(length))
  end
  if what > 1 then
    said = string.format("%s %s", said, address_text(ranges[5]:uint()))
  end
  return said, nil
end

local function say_route(ranges)
  local asker, about = ranges[1]:uint(), ranges[2]:uint()
  local answer = ROUTE_ANSWERS[ranges[3]:uint()] or "unknown"
  return string.format("to %s about %s: %s", address_text(asker), address_text(about), answer)
end

local function find_route_fault(ranges)
  if ranges[1]:uint() >= GROUP_BIT or ranges[2]:uint() >= GROUP_BIT then
    return "a group in place of an address"
  end
  local answer = ranges[3]:uint()
  return not ROUTE_ANSWERS[answer] and string.format("answer %d", answer)
end

local function say_way(ranges)
  local word = WAY_WORDS[ranges[3]:uint()] or "says something unknown"
  local said = string.format(word, tostring(ranges[4]:uint64()))
  return string.format("search %d of %d %s", ranges[2]:uint(), ranges[1]:uint(), said)
end

local function find_way_fault(ranges)
  local word = ranges[3]:uint()
  return not WAY_WORDS[word] and string.format("word %d", word)
end

-- Which state it is: the relay, the part, its life and number.
local STATE_ID = {
  { f.state_relay, 32 }, { f.state_part, 1 }, { f.state_life, 8 }, { f.state_number, 4 },
}

local function with_id(layout)
  local whole = {}
  for _, field in ipairs(STATE_ID) do
    table.insert(whole, field)
  end
  for _, field in ipairs(layout) do
    table.insert(whole, field)
  end
  return whole
end

-- Adds `count` entries of `layout`, `len` bytes each. Returns what is wrong, if anything is.
local function add_entries(cursor, tree, count, len, layout)
  if count * len > cursor:left() then
    return cursor:fault(tree, string.format("%d entries in %d bytes", count, cursor:left()))
  end
  for _ = 1, count do
    local ranges, fault = add_fixed(cursor, tree, len, layout)
    if fault then
      return fault
    elseif layout[2] and layout[2][1] == f.state_up and ranges[2]:uint() > 1 then
      return cursor:fault(tree, string.format("a link that is up by %d", ranges[2]:uint()))
    end
  end
  return nil
end

-- What a relay says of its links: in detail, or the numbers of those that are up.
local function dissect_link_state(cursor, tree)
  local ranges, fault = add_fixed(cursor, tree, 54, with_id({
    { f.state_age, 2 }, { f.state_form, 1 }, { f.state_free, 4 }, { f.state_name_length, 1 },
  }))
  if fault then
    return "", fault
  end
  local form, length = ranges[6]:uint(), ranges[8]:uint()
  local said = string.format("number %d of part %d", ranges[4]:uint(), ranges[2]:uint())
  if length > MAX_RELAY_NAME or length >= cursor:left() then
    return said, cursor:fault(tree, string.format("a name of %s", plural(length, "byte")))
  end
  local name = length > 0 and cursor:take(length)
  if name then
    tree:add(f.state_name, name)
  end
  local count = cursor:take(1)
  tree:add(f.state_count, count)
  said = string.format("%s of %s", said, name and name:string() or "a relay")
  if name and not name:raw():match("^[!-~]*$") then
    return said, cursor:fault(tree, "a name that is not ASCII")
  elseif not LINK_FORMS[form] then
    return said, cursor:fault(tree, string.format("form %d", form))
  elseif count:uint() > MAX_LINK_STATES then
    return said, cursor:fault(tree, string.format("%d links", count:uint()))
  end
  said = string.format("%s, %s: %s", said, LINK_FORMS[form], plural(count:uint(), "link"))
  if form == 1 then
    return said, add_entries(cursor, tree, count:uint(), 4, { { f.state_link, 4 } })
  end
  return said, add_entries(cursor, tree, count:uint(), 14, {
    { f.state_link, 4 }, { f.state_up, 1 }, { f.state_delay, 4 }, { f.state_loss, 1 },
    { f.state_link_free, 4 },
  })
end

local function dissect_link_state_ack(cursor, tree)
  local ranges, fault = add_fixed(cursor, tree, 1, { { f.state_count, 1 } })
  if fault then
    return "", fault
  end
  local count = ranges[1]:uint()
  if count > MAX_LINK_STATE_ACKS then
    return "", cursor:fault(tree, plural(count, "state"))
  end
  local layout = with_id({ { f.state_held, 1 } })
  return plural(count, "state"), add_entries(cursor, tree, count, 46, layout)
end

local BODIES = {
  [UPDATES] = dissect_updates,
  [SUBSCRIBE] = dissect_subscribe,
  [SUBSCRIBE_ACK] = dissect_subscribe_ack,
  [ROUTE_REPLY] = fixed(9, {
    { f.route_to, 4 }, { f.route_about, 4 }, { f.route_answer, 1 },
  }, say_route, find_route_fault),
  [LINK_HELLO] = fixed(30, {
    { f.stamp, 8 }, { f.hello_echo, 8 }, { f.hello_held, 4 }, { f.hello_sent, 4 },
    { f.hello_loss, 2 }, { f.hello_lifetime, 4 },
  }, function(ranges)
    return string.format(
      "stamp %s, echo %s after %d µs, %s sent, loss %.1f %%", tostring(ranges[1]:uint64()),
      tostring(ranges[2]:uint64()), ranges[3]:uint(), plural(ranges[4]:uint(), "packet"),
      ranges[5]:uint() * 100 / 0xffff
    )
  end),
  [WAY_SEARCH] = fixed(15, {
    { f.way_seeker, 2 }, { f.way_number, 4 }, { f.way_word, 1 }, { f.way_answer, 8 },
  }, say_way, find_way_fault),
  [LINK_STATE] = dissect_link_state,
  [LINK_STATE_ACK] = dissect_link_state_ack,
  [HELLO] = fixed(HELLO_LEN - HEADER_LEN, { { f.nonce, 8 } }, say_nonce),
  [COOKIE] = fixed(56, { { f.nonce, 8 }, { f.cookie, 16 }, { f.relay_key, 32 } }, say_nonce),
  [CONNECT] = with_message(24, { { f.nonce, 8 }, { f.cookie, 16 } }),
  [CONNECTED] = with_message(8, { { f.nonce, 8 } }),
  [REFUSED] = fixed(9, { { f.nonce, 8 }, { f.refused, 1 } }, function(ranges)
    local reason = reason_text(REFUSED_REASONS, ranges[2]:uint())
    return string.format("nonce %s: %s", hex(ranges[1]), reason)
  end),
  [KEEPALIVE] = fixed(16, { { f.stamp, 8 }, { f.path_stamp, 8 } }, say_stamp),
  [KEEPALIVE_ACK] = fixed(16, { { f.stamp, 8 }, { f.path_stamp, 8 } }, say_stamp),
  [LEAVE] = fixed(1, { { f.leave, 1 } }, function(ranges)
    return reason_text(LEAVE_REASONS, ranges[1]:uint())
  end),
  [LEFT] = fixed(0, {}, say_nothing),
  [CHALLENGE] = fixed(16, { { f.cookie, 16 } }, say_nothing),
  [REBIND] = fixed(16, { { f.cookie, 16 } }, say_nothing),
  [GROUP_KEY] = fixed(44, {
    { f.key_number, 4 }, { f.key_suite, 1 }, { f.reserved, 3 }, { f.key_first, 4 },
    { f.key_secret, 32 },
  }, function(ranges)
    return string.format("key %d, from %d on", ranges[1]:uint(), ranges[4]:uint())
  end, function(ranges)
    local suite = ranges[2]:uint()
    return not SUITES[suite] and string.format("suite %d", suite)
  end),
  [GROUP_KEY_HELD] = fixed(8, { { f.key_number, 4 }, { f.key_lacks, 4 } }, function(ranges)
    return string.format("has %d, lacks %d", ranges[1]:uint(), ranges[2]:uint())
  end),
  [PROBE] = fixed(32, {
    { f.probe_number, 4 }, { f.probe_clock, 4 }, { f.traffic_datagrams, 4 },
    { f.traffic_bytes, 4 }, { f.probe_share, 2 }, { f.probe_because, 1 }, { f.reserved, 1 },
    { f.probe_left_out, 4 }, { f.probe_budget, 8 },
  }, function(ranges)
    return string.format(
      "number %d, %s sent, %.1f %% of updates, budget %s bit/s by %s", ranges[1]:uint(),
      plural(ranges[3]:uint(), "datagram"), ranges[5]:uint() / 10,
      tostring(ranges[9]:uint64()), reason_text(BOUNDS, ranges[6]:uint())
    )
  end, function(ranges)
    local share = ranges[5]:uint()
    return share > 1000 and string.format("a share of %d", share)
  end),
  [REPORT] = fixed(36, {
    { f.probe_number, 4 }, { f.probe_clock, 4 }, { f.report_clock, 4 }, { f.report_held, 4 },
    { f.traffic_datagrams, 4 }, { f.traffic_bytes, 4 }, { f.report_updates, 4 },
    { f.report_bits, 8 },
  }, function(ranges)
    return string.format(
      "number %d, %s received", ranges[1]:uint(), plural(ranges[5]:uint(), "datagram")
    )
  end),
  [UNKNOWN] = fixed(8, { { f.unknown_echo, 8 } }, function(ranges)
    return "echo " .. hex(ranges[1])
  end),
  [GONE] = fixed(4, { { f.gone, 4 } }, function(ranges)
    return address_text(ranges[1]:uint())
  end),
  [REQUEST] = dissect_request,
  [RESPONSE] = fixed(5, { { f.sequence, 4 }, { f.status, 1 } }, function(ranges)
    local status = reason_text(REQUEST_STATUSES, ranges[2]:uint())
    return string.format("number %d, %s", ranges[1]:uint(), status)
  end),
  [BUSY] = fixed(8, { { f.excess, 1 }, { f.reserved, 3 }, { f.dropped, 4 } }, function(ranges)
    local what = reason_text(EXCESSES, ranges[1]:uint())
    return string.format("too many %s, %d dropped", what, ranges[3]:uint())
  end),
}

local function is_of_this_version(first)
  return first:bitfield(0, 5) == VERSION_BITS
end

local function class_of(first)
  return first:bitfield(5, 3)
end

local function class_of_kind(kind)
  return IS_OF_STRANGERS[kind] and STRANGER or SESSION
end

local function add_first_byte(tree, range)
  local item = tree:add(f.first, range)
  item:add(f.version, range)
  if is_of_this_version(range) then
    item:add(f.class, range)
  end
end

local function add_session(tree, range, kind)
  local item = tree:add(f.session, range)
  if IS_BEFORE_SESSION[kind] then
    item:append_text(" (low bits of the nonce)")
  elseif range:uint() == NO_SESSION then
    item:append_text(" (none)")
  end
end

local function add_header(cursor, tree)
  local tvb = cursor.tvb
  local header = {
    class = class_of(tvb(0, 1)),
    session = tvb(1, 3):uint(),
    kind = tvb(KIND_AT, 1):uint(),
    records = tvb(10, 1):uint(),
    flags = tvb(FLAGS_AT, 1):uint(),
    comtree = tvb(12, 4):uint(),
  }
  add_first_byte(tree, cursor:take(1))
  add_session(tree, cursor:take(3), header.kind)
  tree:add(f.counter, cursor:take(4))
  tree:add(f.kind, cursor:take(1))
  tree:add(f.hop_limit, cursor:take(1))
  tree:add(f.records, cursor:take(1))
  tree:add(f.flags, cursor:take(1))
  local comtree = tree:add(f.comtree, cursor:take(4))
  if IS_COMTREE_HIDDEN[header.kind] then
    comtree:append_text(" (the comtree is in the message)")
  end
  return header
end

-- Another version's layout is unknown, but for what never moves: the nonce of a hello and of its
-- refusal.
local function dissect_other_version(cursor, tree)
  local tvb = cursor.tvb
  local first = tvb(0, 1)
  add_first_byte(tree, first)
  if not cursor.faulty then
    tree:add_proto_expert_info(e.version)
  end
  local info = string.format("First byte 0x%02x, version %d", first:uint(), first:bitfield(2, 3))
  local kind = cursor.stop > KIND_AT and tvb(KIND_AT, 1):uint()
  local is_hello = kind == HELLO and cursor.stop >= HELLO_LEN and first:bitfield(0, 2) == FIRST_BITS
  local is_refused = kind == REFUSED and cursor.stop > REASON_AT
    and REFUSED_REASONS[tvb(REASON_AT, 1):uint()] == "another version"
  if is_hello or is_refused then
    tree:add(f.kind, tvb(KIND_AT, 1))
    tree:add(f.nonce, tvb(NONCE_AT, 8))
    info = info .. string.format(", %s, nonce %s", KINDS[kind], hex(tvb(NONCE_AT, 8)))
  end
  if is_refused then
    tree:add(f.refused, tvb(REASON_AT, 1))
  end
  return info
end

-- Adds a packet of which a key is needed to see more than who it is of: of a session, or, if it is
-- of the class of groups, for all who have the group key that it names. Returns the Info text.
local function dissect_sealed(cursor, tree)
  local is_of_group = class_of(cursor.tvb(0, 1)) == GROUP
  local name = is_of_group and "Sealed for a group" or "Sealed"
  local whole = cursor.tvb:reported_len()
  local length = whole - CLEAR_LEN - TAG_LEN
  add_first_byte(tree, cursor:take(1))
  if whole < SEALED_LEN or cursor.stop < CLEAR_LEN then
    return name .. " " .. cursor:fault(tree, plural(whole, "byte"))
  end
  local number, counter = cursor:take(3), cursor:take(4)
  if is_of_group then
    tree:add(f.group_key, number)
  else
    add_session(tree, number)
  end
  tree:add(f.counter, counter)
  local shown = math.min(length, cursor:left())
  if shown > 0 then
    tree:add(f.sealed, cursor:take(shown))
  end
  if cursor:left() > 0 then
    tree:add(f.tag, cursor:take(cursor:left()))
  end
  local info = string.format(
    "%s, %s %d, counter %d, %s", name, is_of_group and "key" or "session", number:uint(),
    counter:uint(), plural(length, "byte")
  )
  return cursor.cut and info .. " " .. cursor:fault(tree) or info
end

local function is_sealed(first)
  local class = class_of(first)
  return class == SEALED or class == GROUP
end

-- Adds everything behind the header. Returns what the Info column says of it, and what is wrong.
local function dissect_body(cursor, tree, header)
  local class = class_of_kind(header.kind)
  if header.class ~= class then
    local text = string.format("class %d, a packet of this kind has %d", header.class, class)
    return "", cursor:fault(tree, text)
  elseif header.flags ~= 0 then
    -- They would say how to read what follows.
    return "", cursor:fault(tree, string.format("flags 0x%02x", header.flags))
  end
  local said, fault = BODIES[header.kind](cursor, tree, header)
  if cursor:left() > 0 and not cursor.faulty then
    tree:add(f.ignored, cursor:take(cursor:left()))
  end
  return said, fault
end

-- Adds a packet of this version whose header is whole. Returns the Info text, and whether the
-- packet is sound.
local function dissect_packet(cursor, tree)
  local header = add_header(cursor, tree)
  local name = KINDS[header.kind]
  if not name then
    if not cursor.faulty then
      tree:add_proto_expert_info(e.kind)
    end
    return string.format("Unknown kind 0x%02x, comtree %d", header.kind, header.comtree), false
  end
  local said, fault = dissect_body(cursor, tree, header)
  local parts = { name }
  if not IS_COMTREE_HIDDEN[header.kind] then
    table.insert(parts, string.format("comtree %d", header.comtree))
  end
  if header.session ~= NO_SESSION and not IS_BEFORE_SESSION[header.kind] then
    table.insert(parts, string.format("session %d", header.session))
  end
  if said ~= "" then
    table.insert(parts, said)
  end
  local info = table.concat(parts, ", ")
  return fault and (info .. " " .. fault) or info, not cursor.faulty
end

-- Returns the Info text, and whether the packet is one that a receiver would take.
local function dissect(tvb, tree)
  local cursor = setmetatable({
    tvb = tvb,
    at = 0,
    stop = tvb:len(),
    cut = tvb:len() < tvb:reported_len(),
    faulty = false,
  }, Cursor)
  if cursor.cut then
    tree:add_proto_expert_info(e.cut)
  end
  if cursor.stop == 0 then
    return cursor:fault(tree, "empty"), false
  end
  local too_long = ""
  if tvb:reported_len() > MAX_DATAGRAM then
    too_long = " " .. cursor:fault(tree, string.format("longer than %d bytes", MAX_DATAGRAM))
  end
  local info, sound
  if not is_of_this_version(tvb(0, 1)) then
    info, sound = dissect_other_version(cursor, tree), false
  elseif is_sealed(tvb(0, 1)) then
    info = dissect_sealed(cursor, tree)
    sound = not cursor.faulty
  elseif cursor.stop < HEADER_LEN then
    add_first_byte(tree, tvb(0, 1))
    info, sound = cursor:fault(tree, string.format("header of %d bytes", cursor.stop)), false
  else
    info, sound = dissect_packet(cursor, tree)
  end
  return info .. too_long, sound
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

local function looks_like_canopy(tvb)
  if tvb:len() <= FLAGS_AT or not is_of_this_version(tvb(0, 1)) then
    return false
  end
  local class, kind = class_of(tvb(0, 1)), tvb(KIND_AT, 1):uint()
  if is_sealed(tvb(0, 1)) then
    return tvb:reported_len() >= SEALED_LEN
  end
  return KINDS[kind] and class == class_of_kind(kind) and tvb(FLAGS_AT, 1):uint() == 0
end

local function heuristic(tvb, pinfo, root)
  if not looks_like_canopy(tvb) then
    return false
  end
  -- A sound packet vouches for its flow, so that unknown kinds on it are named too. A sealed one
  -- does not: one first byte says too little.
  if show(tvb, pinfo, root) and not is_sealed(tvb(0, 1)) then
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
