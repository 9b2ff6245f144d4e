#include "fsdp/checkpoint/format/tensor_type.h"

namespace fsdpd {
namespace {

constexpr TensorType kTypes[] = {
    {"float32", "FloatStorage", 4, "F32"},
    {"bfloat16", "BFloat16Storage", 2, "BF16"},
    {"float16", "HalfStorage", 2, "F16"},
    {"float64", "DoubleStorage", 8, "F64"},
    {"int64", "LongStorage", 8, "I64"},
    {"int32", "IntStorage", 4, "I32"},
    {"int16", "ShortStorage", 2, "I16"},
    {"int8", "CharStorage", 1, "I8"},
    {"uint8", "ByteStorage", 1, "U8"},
    {"bool", "BoolStorage", 1, "BOOL"},
    {"complex64", "ComplexFloatStorage", 8, "C64"},
    {"complex128", "ComplexDoubleStorage", 16, ""},
    {"float8_e4m3fn", "", 1, "F8_E4M3"},
    {"float8_e5m2", "", 1, "F8_E5M2"},
    {"uint16", "", 2, "U16"},
    {"uint32", "", 4, "U32"},
    {"uint64", "", 8, "U64"},
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

const TensorType* FindTensorTypeOfSafetensors(absl::string_view name) {
  for (const TensorType& type : kTypes) {
    if (!name.empty() && type.safetensors == name) return &type;
  }
  return nullptr;
}

}  // namespace fsdpd
