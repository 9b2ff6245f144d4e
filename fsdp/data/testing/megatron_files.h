// Test writer for Megatron's indexed datasets (.bin and .idx), in the format of Megatron's builder.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace fsdpd {

template <typename T>
void Append(T value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

struct MegatronTables {
  uint8_t type = 4;  // i32
  std::vector<int32_t> sizes;
  std::vector<int64_t> pointers;
  std::vector<int64_t> documents;

  std::string Bytes() const {
    std::string bytes("MMIDIDX\0\0", 9);
    Append(uint64_t{1}, &bytes);
    Append(type, &bytes);
    Append(uint64_t{sizes.size()}, &bytes);
    Append(uint64_t{documents.size()}, &bytes);
    for (int32_t size : sizes) Append(size, &bytes);
    for (int64_t pointer : pointers) Append(pointer, &bytes);
    for (int64_t document : documents) Append(document, &bytes);
    return bytes;
  }
};

// Consecutive sequences, each its own document.
inline MegatronTables TablesOf(const std::vector<int32_t>& sizes, uint8_t type, int64_t width) {
  MegatronTables tables{type, sizes, {}, {0}};
  int64_t end = 0;
  for (int32_t size : sizes) {
    tables.pointers.push_back(end);
    tables.documents.push_back(static_cast<int64_t>(tables.pointers.size()));
    end += size * width;
  }
  return tables;
}

inline void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

template <typename T>
void WriteMegatron(const std::string& prefix, uint8_t type, const std::vector<int32_t>& sizes,
                   const std::vector<T>& ids) {
  std::string bin;
  for (T id : ids) Append(id, &bin);
  WriteBytes(prefix + ".bin", bin);
  WriteBytes(prefix + ".idx", TablesOf(sizes, type, sizeof(T)).Bytes());
}

}  // namespace fsdpd
