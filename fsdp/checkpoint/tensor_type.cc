#include "fsdp/checkpoint/tensor_type.h"

namespace fsdpd {
namespace {

constexpr TensorType kTypes[] = {
    {"float32", "FloatStorage", 4},
    {"bfloat16", "BFloat16Storage", 2},
    {"float16", "HalfStorage", 2},
    {"float64", "DoubleStorage", 8},
    {"int64", "LongStorage", 8},
    {"int32", "IntStorage", 4},
    {"int16", "ShortStorage", 2},
    {"int8", "CharStorage", 1},
    {"uint8", "ByteStorage", 1},
    {"bool", "BoolStorage", 1},
    {"complex64", "ComplexFloatStorage", 8},
    {"complex128", "ComplexDoubleStorage", 16},
    {"float8_e4m3fn", "", 1},
    {"float8_e5m2", "", 1},
    {"uint16", "", 2},
    {"uint32", "", 4},
    {"uint64", "", 8},
};

}  // namespace

const TensorType* FindTensorType(absl::string_view name) {
  for (const TensorType& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

const TensorType* FindTensorTypeOfStorage(absl::string_view storage) {
  for (const TensorType& type : kTypes) {
    if (!storage.empty() && type.storage == storage) return &type;
  }
  return nullptr;
}

}  // namespace fsdpd
