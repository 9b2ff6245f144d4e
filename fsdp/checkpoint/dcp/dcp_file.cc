#include "fsdp/checkpoint/dcp/dcp_file.h"

#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_cat.h>

#include <map>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/format/torch_save.h"

namespace fsdpd {
namespace {

// Alignment of data within its record, and therefore within its file.
constexpr int64_t kAlignment = 64;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

absl::Status AddPiece(const DcpPiece& piece, const DcpPlace& place, DcpTensor* tensor) {
  if (tensor->type == nullptr) {
    *tensor = {piece.name, std::string(piece.type->name), piece.type, piece.shape, {}};
  } else if (tensor->type != piece.type || tensor->shape != piece.shape) {
    return absl::InvalidArgumentError(
        absl::StrCat(piece.name, " is ", tensor->type_name, " ", ShapeText(tensor->shape),
                     " in one file and ", piece.type->name, " ", ShapeText(piece.shape), " in another"));
  }
  tensor->chunks.push_back({piece.at, place});
  return absl::OkStatus();
}

}  // namespace

std::vector<DcpPiece> PiecesOfRun(const std::string& name, const TensorType* type,
                                  const std::vector<int64_t>& shape, int64_t begin, int64_t elements) {
  std::vector<DcpPiece> pieces;
  for (Rectangle& at : RectanglesOf(shape, begin, elements))
    pieces.push_back({name, type, shape, std::move(at)});
  return pieces;
}

std::string DcpFileName(int rank, int number) { return absl::StrCat("__", rank, "_", number, ".distcp"); }

DcpFile LayOut(std::string name, std::vector<DcpPiece> pieces, std::vector<DcpSmall> values) {
  DcpFile file;
  file.name = std::move(name);
  file.pieces = std::move(pieces);
  file.values = std::move(values);
  int64_t end = 0;
  for (const DcpSmall& value : file.values) {
    file.value_begins.push_back(Aligned(end));
    end = Aligned(end) + static_cast<int64_t>(value.record.size());
  }
  // Layers are alike, so few of thousands of pieces differ in size, and one rank computes the layouts of all.
  std::map<std::pair<const TensorType*, std::vector<int64_t>>, int64_t> known_bytes;
  for (const DcpPiece& piece : file.pieces) {
    int64_t& bytes = known_bytes[{piece.type, piece.at.sizes}];
    if (bytes == 0) bytes = FrameOf(*piece.type, piece.at.sizes).bytes();
    file.piece_begins.push_back(Aligned(end));
    file.piece_bytes.push_back(bytes);
    end = Aligned(end) + file.piece_bytes.back();
  }
  file.bytes = end;
  return file;
}

absl::StatusOr<DcpIndex> IndexOf(const std::vector<const DcpFile*>& files) {
  DcpIndex index;
  absl::flat_hash_map<std::string, size_t> known;
  for (const DcpFile* file : files) {
    const auto number = static_cast<int>(index.files.size());
    index.files.push_back(file->name);
    for (size_t i = 0; i < file->values.size(); ++i) {
      const std::string& name = file->values[i].name;
      if (!known.emplace(name, SIZE_MAX).second) {
        return absl::InvalidArgumentError(absl::StrCat("duplicate value ", name));
      }
      const auto bytes = static_cast<int64_t>(file->values[i].record.size());
      index.values.push_back({name, {number, file->value_begins[i], bytes, ""}});
    }
    for (size_t i = 0; i < file->pieces.size(); ++i) {
      const DcpPiece& piece = file->pieces[i];
      const auto [found, is_new] = known.emplace(piece.name, index.tensors.size());
      if (is_new) index.tensors.emplace_back();
      if (found->second == SIZE_MAX) {
        return absl::InvalidArgumentError(
            absl::StrCat(piece.name, " is a tensor in one file and a value in another"));
      }
      FSDPD_RETURN_IF_ERROR(AddPiece(piece, {number, file->piece_begins[i], file->piece_bytes[i], ""},
                                     &index.tensors[found->second]));
    }
  }
  return index;
}

}  // namespace fsdpd
