// Two messages of one type, compared field by field.
//
// Pure.
#pragma once

#include <google/protobuf/message.h>

#include <optional>
#include <string>
#include <vector>

namespace fsdpd {

struct FieldDifference {
  std::string field;                 // Its path: "data.tokens[0].path".
  std::optional<std::string> first;  // As -o json has it, without quotes; empty: it is not set.
  std::optional<std::string> second;
  bool is_literal = false;  // Numbers, true or false, or a list of them: JSON as they stand.
};

// In the order of the fields' numbers. Of a group that only one of them has, those fields are told that
// somebody wrote (`written_first`, `written_second`: the messages before defaults were filled in), and the
// group itself, as {}, where nobody wrote one. REQUIRES: of one type.
std::vector<FieldDifference> DifferencesOf(const google::protobuf::Message& first,
                                           const google::protobuf::Message& second,
                                           const google::protobuf::Message& written_first,
                                           const google::protobuf::Message& written_second);

}  // namespace fsdpd
