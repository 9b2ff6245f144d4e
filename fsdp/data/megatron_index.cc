#include "fsdp/data/megatron_index.h"

#include <absl/strings/str_format.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr char kMagic[] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr int64_t kVersionByte = 9;
constexpr int64_t kTypeByte = 17;
constexpr int64_t kSequencesByte = 18;
constexpr int64_t kDocumentsByte = 26;
constexpr int64_t kHeaderBytes = 34;
constexpr int64_t kChunk = 8192;  // Entries read at a time.

struct Header {
  StoredId type = StoredId::kI32;
  int64_t sequences = 0;
  int64_t document_entries = 0;

  int64_t pointers_begin() const { return kHeaderBytes + sequences * 4; }
  int64_t documents_begin() const { return pointers_begin() + sequences * 8; }
  int64_t end() const { return documents_begin() + document_entries * 8; }
};

template <typename... Args>
absl::Status Bad(const InputFile& file, const absl::FormatSpec<Args...>& format, const Args&... args) {
  return absl::InvalidArgumentError(file.path() + ": " + absl::StrFormat(format, args...));
}

template <typename T>
T Load(const char* bytes) {
  T value;
  memcpy(&value, bytes, sizeof(T));
  return value;
}

// Converts Megatron's type code. False for types that cannot store token ids.
bool ToStoredId(uint8_t code, StoredId* type) {
  constexpr StoredId kByCode[] = {StoredId::kU8, StoredId::kI8, StoredId::kI16, StoredId::kI32,
                                  StoredId::kI64};
  if (code >= 1 && code <= 5) *type = kByCode[code - 1];
  if (code == 8) *type = StoredId::kU16;
  return (code >= 1 && code <= 5) || code == 8;
}

absl::StatusOr<Header> ReadHeader(const InputFile& idx) {
  char bytes[kHeaderBytes];
  const int64_t size = std::min<int64_t>(idx.size(), kHeaderBytes);
  FSDPD_RETURN_IF_ERROR(idx.Read(0, size, bytes));
  const int64_t magic_size = std::min<int64_t>(size, sizeof(kMagic));
  if (memcmp(bytes, kMagic, magic_size) != 0) {
    return Bad(idx, "byte 0 does not start an index of Megatron's mmap format (MMIDIDX)");
  }
  if (size < kHeaderBytes) return Bad(idx, "header is truncated (got %d bytes, want %d)", size, kHeaderBytes);
  const auto version = Load<uint64_t>(bytes + kVersionByte);
  if (version != 1)
    return Bad(idx, "version at byte %d is not supported (got %d, want 1)", kVersionByte, version);
  Header header;
  const auto code = Load<uint8_t>(bytes + kTypeByte);
  if (!ToStoredId(code, &header.type)) {
    return Bad(idx, "type at byte %d is not supported (got %d: %s)", kTypeByte, code,
               code == 6 || code == 7 ? "floating point" : "unknown");
  }
  // By division: a corrupt count could overflow a product.
  const auto sequences = Load<uint64_t>(bytes + kSequencesByte);
  const auto room = static_cast<uint64_t>(idx.size() - kHeaderBytes);
  if (sequences > room / 12) {
    return Bad(idx, "ends at byte %d, but its header (byte %d) declares %d sequences of 12 bytes each",
               idx.size(), kSequencesByte, sequences);
  }
  const auto documents = Load<uint64_t>(bytes + kDocumentsByte);
  if (documents > (room - sequences * 12) / 8) {
    return Bad(idx, "ends at byte %d, but its header (byte %d) declares %d document entries of 8 bytes each",
               idx.size(), kDocumentsByte, documents);
  }
  header.sequences = static_cast<int64_t>(sequences);
  header.document_entries = static_cast<int64_t>(documents);
  const int64_t rest = idx.size() - header.end();
  if (rest != 0 && rest != header.sequences) {
    return Bad(idx,
               "%d bytes follow the last table at byte %d (want none, or one mode for each of %d sequences)",
               rest, header.end(), header.sequences);
  }
  return header;
}

// Validates sizes and pointers of all sequences; returns their total number of tokens.
absl::StatusOr<int64_t> CheckSequences(const InputFile& idx, const InputFile& bin, const Header& header) {
  const int64_t width = BytesOf(header.type);
  std::vector<int32_t> sizes(kChunk);
  std::vector<int64_t> pointers(kChunk);
  int64_t end = 0;  // End of the previous sequence in the .bin file.
  for (int64_t first = 0; first < header.sequences; first += kChunk) {
    const int64_t count = std::min(kChunk, header.sequences - first);
    const int64_t sizes_byte = kHeaderBytes + first * 4;
    const int64_t pointers_byte = header.pointers_begin() + first * 8;
    FSDPD_RETURN_IF_ERROR(idx.Read(sizes_byte, count * 4, sizes.data()));
    FSDPD_RETURN_IF_ERROR(idx.Read(pointers_byte, count * 8, pointers.data()));
    for (int64_t i = 0; i < count; ++i) {
      if (sizes[i] < 0) {
        return Bad(idx, "sequence %d at byte %d has %d tokens", first + i, sizes_byte + i * 4, sizes[i]);
      }
      if (pointers[i] != end) {
        return Bad(idx,
                   "sequence %d at byte %d starts at byte %d of the .bin, but the one before it ends at %d",
                   first + i, pointers_byte + i * 8, pointers[i], end);
      }
      end += sizes[i] * width;
      if (end > bin.size()) {
        return Bad(bin, "ends at byte %d, but sequence %d of the index (byte %d of %s) ends at byte %d",
                   bin.size(), first + i, sizes_byte + i * 4, idx.path(), end);
      }
    }
  }
  return end / width;
}

absl::Status CheckDocuments(const InputFile& idx, const Header& header) {
  if (header.document_entries == 0) {
    return Bad(idx, "number of document entries at byte %d is 0 (want at least 1)", kDocumentsByte);
  }
  std::vector<int64_t> entries(kChunk);
  int64_t previous = 0;
  for (int64_t first = 0; first < header.document_entries; first += kChunk) {
    const int64_t count = std::min(kChunk, header.document_entries - first);
    const int64_t byte = header.documents_begin() + first * 8;
    FSDPD_RETURN_IF_ERROR(idx.Read(byte, count * 8, entries.data()));
    if (first == 0 && entries[0] != 0) {
      return Bad(idx, "the first document at byte %d starts with sequence %d instead of 0", byte, entries[0]);
    }
    for (int64_t i = 0; i < count; ++i) {
      if (entries[i] < previous || entries[i] > header.sequences) {
        return Bad(idx, "document entry %d at byte %d is %d, which is not between %d and the %d sequences",
                   first + i, byte + i * 8, entries[i], previous, header.sequences);
      }
      previous = entries[i];
    }
  }
  if (previous == header.sequences) return absl::OkStatus();
  return Bad(idx, "the last document entry at byte %d is %d, but there are %d sequences", header.end() - 8,
             previous, header.sequences);
}

}  // namespace

absl::StatusOr<MegatronIndex> ReadMegatronIndex(const InputFile& idx, const InputFile& bin) {
  FSDPD_ASSIGN_OR_RETURN(const Header header, ReadHeader(idx));
  FSDPD_ASSIGN_OR_RETURN(const int64_t tokens, CheckSequences(idx, bin, header));
  FSDPD_RETURN_IF_ERROR(CheckDocuments(idx, header));
  return MegatronIndex{header.type, tokens, header.sequences, header.document_entries - 1};
}

}  // namespace fsdpd
