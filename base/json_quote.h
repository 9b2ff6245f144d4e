// A text as a JSON string, quotes included; it is a YAML double-quoted string too. Bytes above 0x7F pass as
// they are: what we write is UTF-8, because what we read was checked to be.
//
// Of JSON this is all that the project writes by hand. Messages are printed by descriptor
// (client/spec_print), traces, profiles and what stands beside a model's weights are a few fixed lines. What
// is read goes through protobuf's parser, yaml-cpp, which knows the place of every value, or
// fsdp/checkpoint/json, which trusts nobody; a JSON library would bring 25,000 lines.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

std::string JsonQuoted(absl::string_view text);

}  // namespace fsdpd
