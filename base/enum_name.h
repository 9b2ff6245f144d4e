// A proto enum's value as people write and read it: DEVICE_CUDA is "cuda". What is cut off is the prefix that
// the enum's zero shows, DEVICE_UNSPECIFIED.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/generated_enum_reflection.h>

#include <string>

namespace fsdpd {

std::string ShortEnumName(const google::protobuf::EnumValueDescriptor& value);  // The zero is "unspecified".

// "#7" for a number that this build has no name for.
template <typename Enum>
std::string ShortEnumName(Enum value) {
  const auto* known = google::protobuf::GetEnumDescriptor<Enum>()->FindValueByNumber(static_cast<int>(value));
  return known == nullptr ? "#" + std::to_string(static_cast<int>(value)) : ShortEnumName(*known);
}

}  // namespace fsdpd
