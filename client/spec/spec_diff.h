// Field-by-field comparison of two messages of one type. Pure functions.
#pragma once

#include <google/protobuf/message.h>

#include <optional>
#include <string>
#include <vector>

namespace fsdpd {

struct FieldDifference {
  std::string field;                 // Path, such as "data.tokens[0].path".
  std::optional<std::string> first;  // The value in -o json, without quotes; empty: not set.
  std::optional<std::string> second;
  bool is_literal = false;  // Numbers, booleans, or lists of them: valid JSON without quotes.
};

// Returns differences in order of field numbers. `written_first` and `written_second` are the messages before
// defaults were filled in. If only one message has a submessage, only its explicitly written fields are
// listed, or the submessage as {} if none of them was written. REQUIRES: all messages have the same type.
std::vector<FieldDifference> DifferencesOf(const google::protobuf::Message& first,
                                           const google::protobuf::Message& second,
                                           const google::protobuf::Message& written_first,
                                           const google::protobuf::Message& written_second);

}  // namespace fsdpd
