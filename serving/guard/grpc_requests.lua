-- Names the model and the rows of a gRPC request for inference, for the log of arrivals, and refuses
-- requests whose names are so long that Triton's error, a header, would end a connection of all clients.
--
-- Model and rows are read from the first bytes of the message: model_name is field 1 of ModelInferRequest, and
-- the rows are the first dimension of the first input's shape (field 3 of field 5). The message is
-- passed on as it comes and is never waited for. If this script fails, Envoy lets the request through.

-- Compiled code would be of use to no later request, as each has a coroutine of its own: with LuaJIT's
-- compiler on, the guard takes 36 µs more of the CPU for a request, and with it off 22.
jit.off()

local INFERS, STREAMS, ASKS = 1, 2, 3
local METHODS = {
  ["/inference.GRPCInferenceService/ModelInfer"] = INFERS,
  ["/inference.GRPCInferenceService/ModelStreamInfer"] = STREAMS, -- has its errors in messages
  ["/inference.GRPCInferenceService/ModelReady"] = ASKS,
  ["/inference.GRPCInferenceService/ModelMetadata"] = ASKS,
  ["/inference.GRPCInferenceService/ModelConfig"] = ASKS,
  ["/inference.GRPCInferenceService/ModelStatistics"] = ASKS,
}
local CHECK_AGENT = "millrace-check" -- of Millrace's own checks, which are not recorded
local MOST = 256 -- bytes that are looked at; the name and a shape are usually within the first 60
local SMALL = 8192 -- bytes of a message that is not checked: a header holds all of it, even escaped
local MOST_TEXT, MOST_FIELDS = 16384, 65536
-- What Triton's errors repeat, by the numbers of the fields: true, or the fields of a message in it.
local REQUEST = {
  [1] = true, [2] = true, [3] = true, -- the model's name and version, and the request's id
  [5] = {[1] = true, [3] = true}, -- an input's name and shape
  [6] = {[1] = true, [2] = true}, -- an output's name and parameters
}
local WIDTHS = {[0] = 0, [1] = 8, [2] = -1, [5] = 4} -- of a field by its type; -1: it has a length
local MALFORMED = "malformed"
local TOO_LONG = "the model's name and version, the id, the names and shapes of the inputs, and the "
  .. "names and parameters of the outputs exceed " .. MOST_TEXT .. " bytes together"
local TOO_LARGE = "the message exceeds " .. SMALL .. " bytes; it has only a model's name and version"
local COMPRESSED = "the message is compressed; send it uncompressed"
local byte = string.byte

-- Return the number at i, and the index after it; nil if it is not whole.
local function varint(head, i)
  local c = byte(head, i)
  if c and c < 128 then return c, i + 1 end
  local number, unit = 0, 1
  for at = i, i + 9 do
    c = byte(head, at)
    if not c then return nil end
    if c < 128 then return number + c * unit, at + 1 end
    number, unit = number + (c - 128) * unit, unit * 128
  end
  return nil
end

-- Return where the content of a field begins whose number and type are `wanted`, from i on; nil if it
-- is not within the head. Only fields that have a length are passed over.
local function find_field(head, i, wanted)
  while true do
    local key, length
    key, i = varint(head, i)
    if not key or key % 8 ~= 2 then return nil end
    length, i = varint(head, i)
    if not length then return nil end
    if key == wanted then return i end
    i = i + length
  end
end

-- Return the model and the first dimension of the first input, separated by a space, from the first
-- bytes of a message that is not compressed. Without the dimension the rows are 0. Triton's clients
-- write the fields in the order of their numbers.
local function name_arrival(head)
  local length, model = head:match("^%z....\10(.)([%w_.-]+)")
  if not model or #model ~= byte(length) or #model > 127 then return nil end
  local input = find_field(head, 8 + #model, 42)
  local shape = input and find_field(head, input, 26)
  local rows = shape and varint(head, shape) or 0
  return string.format("%s %d", model, rows)
end

-- Return the next byte of the body, and nil at its end. The bytes before it are passed on.
local function take(reader)
  while reader.at >= reader.size do
    local chunk = reader.following()
    if not chunk then return nil end
    reader.chunk, reader.at, reader.size = chunk, 0, chunk:length()
  end
  local c = byte(reader.chunk:getBytes(reader.at, 1))
  reader.at, reader.left = reader.at + 1, reader.left - 1
  return c
end

-- Return the number that follows; `most` is more than it may be.
local function take_number(reader, most)
  local number, unit = 0, 1
  for _ = 1, 10 do
    local c = take(reader)
    if not c then return most end
    number, unit = number + c % 128 * unit, unit * 128
    if c < 128 then return number end
  end
  return most
end

local function pass(reader, length)
  reader.left = reader.left - length
  while length > reader.size - reader.at do
    length = length - (reader.size - reader.at)
    local chunk = reader.following()
    if not chunk then return end
    reader.chunk, reader.at, reader.size = chunk, 0, chunk:length()
  end
  reader.at = reader.at + length
end

-- Return what is wrong with the fields up to where `rest` bytes are left, nil if nothing is.
local function find_fault(reader, fields, rest)
  while reader.left > rest do
    local key = take_number(reader, 2 ^ 32)
    local kind, length = fields[math.floor(key / 8)], WIDTHS[key % 8]
    reader.fields = reader.fields + 1
    if key >= 2 ^ 32 or not length or reader.fields > MOST_FIELDS then return MALFORMED end
    if length < 0 then length = take_number(reader, 2 ^ 32) end
    if key % 8 == 0 then take_number(reader, 0) end
    if length > reader.left - rest then return MALFORMED end
    local fault = nil
    if type(kind) == "table" then
      fault = find_fault(reader, kind, reader.left - length)
    else
      reader.text = reader.text + (kind and math.max(length, 10 - key % 8 * 5) or 0)
      if reader.text > MOST_TEXT then return TOO_LONG end
      pass(reader, length)
    end
    if fault then return fault end
  end
end

-- Replace what is left of the body by bytes that are no text and no number, so that Triton refuses it
-- unread: nothing else ends a request whose beginning has been passed on.
local function spoil(reader)
  while reader.chunk do
    local kept = reader.at > 0 and reader.chunk:getBytes(0, reader.at) or ""
    reader.chunk:setBytes(kept .. string.rep("\255", reader.size - reader.at))
    reader.chunk, reader.at = reader.following(), 0
    reader.size = reader.chunk and reader.chunk:length() or 0
  end
end

local function refuse(handle, reader, status, why)
  local metadata = handle:streamInfo():dynamicMetadata()
  metadata:set("millrace", "refused_status", status)
  metadata:set("millrace", "refused", why)
  spoil(reader)
end

-- Refuse a message whose text might be more than Triton's error may repeat in a header.
local function check(handle, reader, kind, prefix)
  local flag, a, b, c, d = byte(prefix, 1, 5)
  if flag ~= 0 then return refuse(handle, reader, "12", COMPRESSED) end
  reader.left = ((a * 256 + b) * 256 + c) * 256 + d
  if reader.left <= SMALL then return end
  if kind == ASKS then return refuse(handle, reader, "3", TOO_LARGE) end
  local fault = find_fault(reader, REQUEST, 0)
  if fault == MALFORMED then return spoil(reader) end
  if fault then refuse(handle, reader, "3", fault) end
end

local function record(handle, head)
  local agent = handle:headers():get("user-agent")
  if agent and agent:sub(1, #CHECK_AGENT) == CHECK_AGENT then return end
  local named = name_arrival(head)
  if named then handle:streamInfo():dynamicMetadata():set("millrace", "arrival", named) end
end

function envoy_on_request(handle)
  local kind = METHODS[handle:headers():get(":path")]
  if not kind then return end
  local reader = {following = handle:bodyChunks(), text = 0, fields = 0}
  local head, before = "", 0
  while #head <= 5 do -- the bytes before a message may come alone
    local chunk = reader.following()
    if not chunk then return end
    local length = chunk:length()
    reader.chunk, reader.size, before = chunk, length, #head
    head = head .. chunk:getBytes(0, length < MOST and length or MOST)
  end
  reader.at = 5 - before
  if kind ~= ASKS then record(handle, head) end
  if kind ~= STREAMS then check(handle, reader, kind, head) end
end
