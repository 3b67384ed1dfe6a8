-- Checks the body of a request before Triton reads it.
--
-- Envoy runs this with LuaJIT, once for each worker thread. A body is read once, byte by byte, and
-- never copied into tables or strings. It must be strict JSON (RFC 8259), at most MAX_DEPTH deep. In
-- an inference request, every input's shape and datatype must match the values of the input. JSON
-- that two parsers may read differently (a duplicate key, an escape in a key) is refused.

-- LuaJIT's default limits would leave the loops below interpreted: 33 µs per check instead of 4 µs.
jit.opt.start("maxside=300", "maxtrace=4000", "maxrecord=8000")

local ffi = require("ffi")
local byte_pointer = ffi.typeof("const uint8_t *")

local MAX_DEPTH = 32
local MAX_KEYS = 256 -- in one object; limited because Triton searches all keys for each parameter
local MAX_TENSORS = 1024 -- inputs in one request, and outputs
local MAX_DIMENSION = 2147483647
local MAX_BYTES = 2147483648
local SIZES = {
  BOOL = 1, UINT8 = 1, UINT16 = 2, UINT32 = 4, UINT64 = 8, INT8 = 1, INT16 = 2, INT32 = 4,
  INT64 = 8, FP16 = 2, BF16 = 2, FP32 = 4, FP64 = 8, BYTES = 4,
}
local WHOLE = {
  UINT8 = true, UINT16 = true, UINT32 = true, UINT64 = true, INT8 = true, INT16 = true,
  INT32 = true, INT64 = true,
}
local TRUTHS = {sequence_start = true, sequence_end = true, binary_data_output = true, binary_data = true}
local KINDS = {input = "an input", output = "an output"}

local text, p, n = "", nil, 0 -- the body, a pointer to it, and its length

-- Which kinds of values the list being read has so far; `fits` compares them with the datatype.
local any_number, any_fraction, any_minus, any_large = false, false, false, false
local any_string, any_boolean, any_other = false, false, false
local any_nul = false -- whether a string that was read has the character U+0000

local function forget_kinds()
  any_number, any_fraction, any_minus, any_large = false, false, false, false
  any_string, any_boolean, any_other = false, false, false
end

local function refuse(message)
  error({refused = message}, 0)
end

local function malformed(i, expected)
  refuse("malformed JSON at byte " .. i .. ": expected " .. expected)
end

local function blank(i)
  while i < n do
    local c = p[i]
    if c ~= 32 and c ~= 10 and c ~= 13 and c ~= 9 then return i end
    i = i + 1
  end
  return i
end

local function hexadecimal(i)
  if i + 4 > n then malformed(i, "four hexadecimal digits") end
  local value = 0
  for at = i, i + 3 do
    local c = p[at]
    if c >= 48 and c <= 57 then value = value * 16 + c - 48
    elseif c >= 65 and c <= 70 then value = value * 16 + c - 55
    elseif c >= 97 and c <= 102 then value = value * 16 + c - 87
    else malformed(at, "four hexadecimal digits") end
  end
  return value
end

-- Return the index after an escape whose backslash is at i.
local function escape(i)
  local c = i + 1 < n and p[i + 1] or 0
  if c == 34 or c == 92 or c == 47 or c == 98 or c == 102 or c == 110 or c == 114 or c == 116 then
    return i + 2
  end
  if c ~= 117 then malformed(i, "a JSON escape") end
  local unit = hexadecimal(i + 2)
  if unit == 0 then any_nul = true end
  if unit >= 0xDC00 and unit <= 0xDFFF then malformed(i, "no lone surrogate") end
  if unit < 0xD800 or unit > 0xDBFF then return i + 6 end
  if i + 7 >= n or p[i + 6] ~= 92 or p[i + 7] ~= 117 then malformed(i, "no lone surrogate") end
  local low = hexadecimal(i + 8)
  if low < 0xDC00 or low > 0xDFFF then malformed(i, "no lone surrogate") end
  return i + 12
end

-- Return the index after a UTF-8 character of two to four bytes that begins with byte c at i.
local function wide_end(i, c)
  local more = (c >= 0xC2 and c <= 0xDF) and 1 or (c >= 0xE0 and c <= 0xEF) and 2
    or (c >= 0xF0 and c <= 0xF4) and 3 or malformed(i, "UTF-8")
  if i + more >= n then malformed(i, "UTF-8") end
  local second = p[i + 1]
  if (c == 0xE0 and second < 0xA0) or (c == 0xED and second > 0x9F)
      or (c == 0xF0 and second < 0x90) or (c == 0xF4 and second > 0x8F) then
    malformed(i, "UTF-8")
  end
  for at = i + 1, i + more do
    if p[at] < 0x80 or p[at] > 0xBF then malformed(at, "UTF-8") end
  end
  return i + more + 1
end

-- Return the index after the string whose first character is at i, and whether it has escapes.
local function string_end(i)
  local escaped = false
  while i < n do
    local c = p[i]
    if c == 34 then return i + 1, escaped end
    if c == 92 then
      i, escaped = escape(i), true
    elseif c < 32 then
      malformed(i, "no control character in a string")
    elseif c >= 128 then
      i = wide_end(i, c)
    else
      i = i + 1
    end
  end
  malformed(n, "the end of a string")
end

local function digits(i)
  local first = i
  while i < n and p[i] >= 48 and p[i] <= 57 do i = i + 1 end
  if i == first then malformed(i, "a digit; NaN and Infinity are not JSON") end
  return i
end

local function number_end(i)
  local first, exponent = i, false
  any_number = true
  if p[i] == 45 then
    any_minus, i = true, i + 1
  end
  if i < n and p[i] == 48 then
    i = i + 1
    if i < n and p[i] >= 48 and p[i] <= 57 then malformed(i, "no leading zero") end
  else
    i = digits(i)
  end
  if i - first > 18 then any_large = true end
  if i < n and p[i] == 46 then
    any_fraction, i = true, digits(i + 1)
  end
  if i < n and (p[i] == 101 or p[i] == 69) then
    exponent, any_fraction, i = true, true, i + 1
    if i < n and (p[i] == 43 or p[i] == 45) then i = i + 1 end
    i = digits(i)
  end
  if exponent or i - first > 300 then
    local value = tonumber(ffi.string(p + first, i - first))
    if not value or value == math.huge or value == -math.huge then
      malformed(first, "a number that a double can hold")
    end
  end
  return i
end

local function literal(i, word)
  if i + #word > n or ffi.string(p + i, #word) ~= word then malformed(i, "a value") end
  return i + #word
end

-- Return the index of the first character of the next value, skipping white space.
local function value_at(i)
  i = blank(i)
  if i >= n then malformed(n, "a value") end
  return i
end

local value

local function scalar_end(i)
  local c = p[i]
  if c == 45 or (c >= 48 and c <= 57) then return number_end(i) end
  if c == 34 then
    any_string = true
    return (string_end(i + 1))
  end
  if c == 116 or c == 102 then
    any_boolean = true
    return literal(i, c == 116 and "true" or "false")
  end
  if c == 110 then
    any_other = true
    return literal(i, "null")
  end
  malformed(i, "a value; NaN and Infinity are not JSON")
end

local function too_deep(depth)
  if depth > MAX_DEPTH then refuse("the JSON is nested deeper than " .. MAX_DEPTH .. " levels") end
end

-- Return the index after the array whose bracket is at i, and the number of scalars and objects in
-- it and in its nested arrays.
local function array_end(i, depth)
  too_deep(depth)
  local count = 0
  i = value_at(i + 1)
  if p[i] == 93 then return i + 1, 0 end
  while true do
    local c = p[i]
    if c == 91 then
      local inside
      i, inside = array_end(i, depth + 1)
      count = count + inside
    elseif c == 123 then
      i, count, any_other = value(i, depth + 1), count + 1, true
    else
      i, count = scalar_end(i), count + 1
    end
    i = blank(i)
    c = i < n and p[i] or 0
    if c == 93 then return i + 1, count end
    if c ~= 44 then malformed(i, "a comma or the end of an array") end
    i = value_at(i + 1)
  end
end

-- Return the key at i and the index of its value. The key is nil if `kind` is nil. The key is also
-- nil if it is longer than 32 bytes, because no key that is checked is that long.
local function key_at(i, kind)
  i = blank(i)
  if i >= n or p[i] ~= 34 then malformed(i, "a key") end
  local after, escaped = string_end(i + 1)
  if escaped and kind then refuse("a key of " .. kind .. " has an escape") end
  local key = kind and after - i - 2 <= 32 and ffi.string(p + i + 1, after - i - 2) or nil
  i = blank(after)
  if i >= n or p[i] ~= 58 then malformed(i, "a colon") end
  return key, value_at(i + 1)
end

-- Read the object whose brace is at i, and return the index after the object.
--
-- If `kind` is given, `each(key, i, depth)` is called once for every key and returns the index after
-- the key's value.
local function object_end(i, depth, kind, each)
  too_deep(depth)
  local seen, count = kind and {}, 0
  i = blank(i + 1)
  if i < n and p[i] == 125 then return i + 1 end
  while true do
    local key
    count = count + 1
    if count > MAX_KEYS then refuse("an object has more than " .. MAX_KEYS .. " keys") end
    key, i = key_at(i, kind)
    if kind and key then
      if seen[key] then refuse("duplicate key in " .. kind .. ": " .. key) end
      seen[key] = true
      i = each(key, i, depth + 1)
    else
      i = value(i, depth + 1)
    end
    i = blank(i)
    local c = i < n and p[i] or 0
    if c == 125 then return i + 1 end
    if c ~= 44 then malformed(i, "a comma or the end of an object") end
    i = i + 1
  end
end

function value(i, depth)
  local c = p[i]
  if c == 123 then return object_end(i, depth) end
  if c == 91 then return (array_end(i, depth)) end
  return scalar_end(i)
end

-- Return the whole number at i, from 0 to `most`, and the index after it.
local function whole(i, what, most)
  local first, found = i, 0
  while i < n and p[i] >= 48 and p[i] <= 57 do
    found = found * 10 + p[i] - 48
    i = i + 1
  end
  local c = i < n and p[i] or 0
  if i == first or i - first > 15 or found > most or (p[first] == 48 and i - first > 1)
      or c == 46 or c == 101 or c == 69 then
    refuse(what .. " is not a whole number from 0 to " .. string.format("%d", most))
  end
  return found, i
end

-- The input that is being read. One table is reused so that no request allocates another.
local input = {}

-- Return the index after the string at i, and note in `input.name` that the string was present.
local function text_end(i, what)
  if p[i] ~= 34 then refuse(what .. " is not a string") end
  input.name, any_nul = true, false
  local after = string_end(i + 1)
  if any_nul then refuse(what .. " has the character U+0000") end
  return after
end

local first_dimension = nil -- of the first input's shape: the rows of the request

local function shape_end(i)
  if p[i] ~= 91 then refuse("the shape of an input is not a list") end
  local product, length, found = 1, 0, nil
  i = value_at(i + 1)
  if p[i] == 93 then i = i + 1
  else
    while true do
      found, i = whole(i, "a dimension of a shape", MAX_DIMENSION)
      first_dimension = first_dimension or found
      product, length = product * found, length + 1
      if product > MAX_BYTES or length > 64 then refuse("the shape of an input is too large") end
      i = blank(i)
      local c = i < n and p[i] or 0
      i = i + 1
      if c == 93 then break end
      if c ~= 44 then malformed(i - 1, "a comma or the end of a shape") end
      i = value_at(i)
    end
  end
  input.elements = product
  return i
end

local function read_parameter(key, i, depth)
  if key:sub(1, 13) == "shared_memory" then
    refuse("shared memory is not available over HTTP")
  elseif key == "binary_data_size" then
    input.binary, i = whole(i, "binary_data_size", MAX_BYTES)
    return i
  elseif TRUTHS[key] then
    if p[i] ~= 116 and p[i] ~= 102 then refuse("the parameter " .. key .. " is not true or false") end
  elseif key == "sequence_id" and p[i] ~= 34 then
    local _, after = whole(i, key, 1e14)
    return after
  elseif key == "classification" or key == "priority" or key == "timeout" then
    local _, after = whole(i, key, key == "timeout" and 1e14 or MAX_DIMENSION)
    return after
  end
  if p[i] == 123 or p[i] == 91 then refuse("the parameter " .. key .. " is not a plain value") end
  return scalar_end(i)
end

local function parameters_end(i, depth)
  if p[i] ~= 123 then refuse("parameters are not an object") end
  return object_end(i, depth, "the parameters", read_parameter)
end

local function read_input_key(key, i, depth)
  if key == "shape" then return shape_end(i) end
  if key == "parameters" then return parameters_end(i, depth) end
  if key == "datatype" then
    local after = p[i] == 34 and string_end(i + 1) or scalar_end(i)
    local size = p[i] == 34 and after - i <= 16 and SIZES[ffi.string(p + i + 1, after - i - 2)]
    if not size then refuse("an input has an unknown datatype") end
    input.size, input.datatype = size, ffi.string(p + i + 1, after - i - 2)
    return after
  end
  if key == "data" then
    if p[i] ~= 91 then refuse("the data of an input is not a list") end
    forget_kinds()
    i, input.values = array_end(i, depth)
    input.number, input.fraction, input.minus = any_number, any_fraction, any_minus
    input.large, input.string = any_large, any_string
    input.boolean, input.other = any_boolean, any_other
    return i
  end
  if key == "name" then return text_end(i, "the name of an input") end
  return value(i, depth)
end

-- Return whether the kinds of the values that were read fit the datatype.
local function fits(datatype)
  if input.other then return false end
  if datatype == "BYTES" then return not (input.number or input.boolean) end
  if input.string then return false end
  if datatype == "BOOL" then return not input.number end
  if input.boolean then return false end
  if datatype == "FP16" or datatype == "BF16" then return not input.number end
  if not WHOLE[datatype] then return true end
  return not input.fraction and not (input.minus and datatype:byte() == 85)
    and (not input.large or datatype == "INT64" or datatype == "UINT64")
end

-- Refuse the input that was just read if its shape and its content differ. Return `binary` plus the
-- bytes of the input's binary data.
local function agreed(binary)
  local elements, size = input.elements, input.size
  if not elements then refuse("an input has no shape") end
  if not size then refuse("an input has no datatype") end
  if elements * size > MAX_BYTES then refuse("the shape of an input is too large") end
  if input.values then
    if input.binary then refuse("an input has both data and binary_data_size") end
    if input.values ~= elements then
      refuse("an input has " .. input.values .. " values, but its shape needs "
        .. string.format("%d", elements))
    end
    if not fits(input.datatype) then refuse("an input has values that are not " .. input.datatype) end
    return binary
  end
  if not input.binary then refuse("an input has no data") end
  local needed = elements * size
  if input.binary < needed or (input.binary > needed and input.datatype ~= "BYTES") then
    refuse("an input has " .. string.format("%d", input.binary) .. " bytes, but its shape needs "
      .. string.format("%d", needed))
  end
  return binary + input.binary
end

-- Read the list of inputs or outputs at i with `each`. Return the index after the list, and the sum
-- of the `binary_data_size` of the inputs.
local function objects_end(i, depth, kind, each)
  if p[i] ~= 91 then refuse(kind .. "s are not a list") end
  too_deep(depth)
  local binary, count = 0, 0
  i = value_at(i + 1)
  if p[i] == 93 then return i + 1, 0 end
  while true do
    count = count + 1
    if count > MAX_TENSORS then refuse("there are more than " .. MAX_TENSORS .. " " .. kind .. "s") end
    if p[i] ~= 123 then refuse(KINDS[kind] .. " is not an object") end
    input.elements, input.size, input.datatype = nil, nil, nil
    input.values, input.binary, input.name = nil, nil, false
    i = blank(object_end(i, depth + 1, KINDS[kind], each))
    if not input.name then refuse(KINDS[kind] .. " has no name") end
    if kind == "input" then binary = agreed(binary) end
    local c = i < n and p[i] or 0
    if c == 93 then return i + 1, binary end
    if c ~= 44 then malformed(i, "a comma or the end of a list") end
    i = value_at(i + 1)
  end
end

local function read_output_key(key, i, depth)
  if key == "parameters" then return parameters_end(i, depth) end
  if key == "name" then return text_end(i, "the name of an output") end
  return value(i, depth)
end

local binary_bytes, has_inputs = 0, false

local function read_request_key(key, i, depth)
  if key == "inputs" then
    has_inputs = true
    i, binary_bytes = objects_end(i, depth, "input", read_input_key)
    return i
  end
  if key == "outputs" then return (objects_end(i, depth, "output", read_output_key)) end
  if key == "parameters" then return parameters_end(i, depth) end
  if key == "id" then return text_end(i, "the id of the request") end
  return value(i, depth)
end

-- Check the JSON of a request. Return the number of bytes of tensors that the JSON says follow it.
local function checked(body, kind, each)
  text, n, binary_bytes, has_inputs = body, #body, 0, false
  p = ffi.cast(byte_pointer, text)
  local i = value_at(0)
  if p[i] ~= 123 then refuse("the request is not a JSON object") end
  i = blank(object_end(i, 1, kind, each))
  if i < n then malformed(i, "nothing after the object") end
  if each == read_request_key and not has_inputs then refuse("the request has no inputs") end
  return binary_bytes
end

local function check_infer(handle)
  local body = handle:body(true)
  local length = body:length()
  local header = handle:headers():get("inference-header-content-length")
  if not header then
    if checked(body:getBytes(0, length), "the request", read_request_key) ~= 0 then
      refuse("binary_data_size needs the header Inference-Header-Content-Length")
    end
    return
  end
  local json = #header <= 10 and header:match("^%d+$") and tonumber(header)
  if not json or json > length then
    refuse("Inference-Header-Content-Length is not a number from 0 to the body's length")
  end
  if json == 0 then return end -- the whole body is one tensor; Triton derives its shape
  local follows = checked(body:getBytes(0, json), "the request", read_request_key)
  if follows ~= length - json then
    refuse("the request says that " .. string.format("%d", follows) .. " bytes of tensors follow the "
      .. "JSON, but " .. string.format("%d", length - json) .. " bytes do")
  end
end

local function read_generate_key(key, i, depth)
  if key == "id" then return text_end(i, "the id of the request") end
  if key == "parameters" and p[i] ~= 123 then refuse("parameters are not an object") end
  if p[i] ~= 91 then return value(i, depth) end
  forget_kinds()
  local after = array_end(i, depth)
  local kinds = (any_number and 1 or 0) + (any_string and 1 or 0) + (any_boolean and 1 or 0)
  if kinds > 1 or any_other then refuse("the values of " .. key .. " are not all of one kind") end
  return after
end

local function check_generate(handle)
  local body = handle:body(true)
  checked(body:getBytes(0, body:length()), "the request", read_generate_key)
end

-- Name the model and the rows of a valid request, for the log of arrivals; 0 rows are not known.
local function note_arrival(handle, path)
  local model = path:match("^/v2/models/([%w_.-]+)/")
  if not model or #model > 128 then return end
  local named = string.format("%s %d", model, first_dimension or 0)
  handle:streamInfo():dynamicMetadata():set("millrace", "arrival", named)
end

-- The routes send three kinds of paths through this check: …/infer, …/generate, …/generate_stream.
local function check_request(handle)
  local path = handle:headers():get(":path"):match("^[^?]*")
  if not handle:headers():get("content-length") then
    -- The body comes in chunks. Triton 2.51 uses some of its stack for each chunk, so the body is
    -- sent on as a whole. `headers()` is called again because a result from before the wait for the
    -- body is no longer valid.
    local length = handle:body(true):length()
    handle:headers():remove("transfer-encoding")
    handle:headers():add("content-length", tostring(length))
  end
  if path:sub(-6) == "/infer" then check_infer(handle) else check_generate(handle) end
  note_arrival(handle, path)
end

-- If this script fails, Envoy lets the request through. So all the work is inside this `pcall`.
function envoy_on_request(handle)
  local fine, problem = pcall(check_request, handle)
  text, p, n, first_dimension = "", nil, 0, nil
  if not fine then
    if type(problem) ~= "table" then
      handle:logErr(problem)
      problem = {refused = "the request cannot be checked"}
    end
    handle:respond({[":status"] = "400"}, problem.refused)
  end
end
