// Quoting of a text as a JSON string, including the quotes; the result is a YAML double-quoted string too.
// Bytes above 0x7F are passed through: our texts are checked to be UTF-8 when they are read.
//
// This is the only JSON that the project writes without a library, because a JSON library would add 25,000
// lines. Messages are printed by descriptor (client/spec/spec_print); traces, profiles and files next to
// model weights are a few fixed lines. JSON is read by the protobuf parser, by yaml-cpp (which knows
// positions), or by fsdp/checkpoint/format/json (for untrusted files).
#pragma once

#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

std::string JsonQuoted(absl::string_view text);

}  // namespace fsdpd
