#include "base/spec_text/enum_name.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/string_view.h>

namespace fsdpd {

std::string ShortEnumName(const google::protobuf::EnumValueDescriptor& value) {
  constexpr absl::string_view kZero = "UNSPECIFIED";
  const google::protobuf::EnumValueDescriptor* zero = value.type()->FindValueByNumber(0);
  const bool prefixed = zero != nullptr && absl::EndsWith(zero->name(), kZero);
  return absl::AsciiStrToLower(value.name().substr(prefixed ? zero->name().size() - kZero.size() : 0));
}

}  // namespace fsdpd
