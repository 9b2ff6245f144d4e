// A text as a JSON string, quotes included; it is a YAML double-quoted string too. Bytes above 0x7F pass as
// they are: what we write is UTF-8, because what we read was checked to be.
//
// Of JSON this is all that the project writes by hand. Messages are printed by descriptor
// (client/spec_print), traces and profiles are a few fixed lines, and what is read goes through protobuf's
// parser or yaml-cpp, which knows the place of every value; a JSON library would bring 25,000 lines for this
// function.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

std::string JsonQuoted(absl::string_view text);

}  // namespace fsdpd
