// Error lines of fsdpctl and the daemons: a message with its error id in brackets, as in "no job 'x'
// [JOB_NOT_FOUND]". The ids are registered in reason.proto.
//
// Pure.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

// Adds " [ID]" to the end of the first line. A first line that ends with an id or a rule in brackets is
// returned unchanged: the code that found the error knows its id better than the code that prints it.
std::string WithErrorId(absl::string_view message, absl::string_view id);

}  // namespace fsdpd
