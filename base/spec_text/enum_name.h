// Short names of proto enum values, as users write and read them: DEVICE_CUDA is "cuda". The prefix is that
// of the zero value of the enum, DEVICE_UNSPECIFIED.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/generated_enum_reflection.h>

#include <string>

namespace fsdpd {

// The zero value is "unspecified".
std::string ShortEnumName(const google::protobuf::EnumValueDescriptor& value);

// "#7" for a number unknown to this build.
template <typename Enum>
std::string ShortEnumName(Enum value) {
  const auto* known = google::protobuf::GetEnumDescriptor<Enum>()->FindValueByNumber(static_cast<int>(value));
  return known == nullptr ? "#" + std::to_string(static_cast<int>(value)) : ShortEnumName(*known);
}

}  // namespace fsdpd
