// Enum fields of a spec whose type has values that the rules refuse in every spec: precision.main_grads is a
// DType and never fp8. `explain`, docs/spec.py and the error for an unknown value list ValuesOf() a field.
#pragma once

#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

namespace fsdpd {

// Short names of the values that some valid spec has in the field at `path`, in the order of its type.
std::vector<std::string> ValuesOf(const std::string& path, const google::protobuf::EnumDescriptor& type);

}  // namespace fsdpd
