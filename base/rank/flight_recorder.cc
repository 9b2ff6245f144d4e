#include "base/rank/flight_recorder.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/errno_status.h"

namespace fsdpd {
namespace {

constexpr uint64_t kMagic = 0x6567617074686766;
constexpr uint32_t kVersion = 4;

struct Name {
  char text[kMaxFlightNameBytes];
};

// Written once by Describe(), `magic` last.
struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t lanes;
  uint32_t training;    // Number of names of the training program, which come first.
  uint32_t evaluation;  // Number of names of the evaluation program.
  uint32_t exchanging;  // One bit per lane, lowest first.
  Name lane_names[kMaxFlightLanes];
};
static_assert(sizeof(Header) <= kFlightWordBytes);

constexpr uint32_t kLaunchedWord = kMaxFlightLanes;  // After the words of lanes.
constexpr uint32_t kPhaseWord = kLaunchedWord + 1;
constexpr size_t kWordsAt = kFlightWordBytes;
constexpr size_t kNamesAt = kWordsAt + (kPhaseWord + 1) * kFlightWordBytes;
constexpr size_t kPageBytes = kNamesAt + kMaxFlightNames * sizeof(Name);

// Bits of a word, lowest first: inside, after, evaluation, 29 of the instruction, 31 of the step, recorded.
// Exactly one of the first two is set.
constexpr uint64_t kInside = 1, kAfter = 2, kEvaluation = 4;
constexpr uint64_t kRecorded = uint64_t{1} << 63;
constexpr int kInstructionAt = 3, kInstructionBits = 29, kStepAt = kInstructionAt + kInstructionBits;
constexpr int kStepBits = 31;
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);

void SetName(Name* name, const std::string& text) {
  memset(name->text, 0, sizeof name->text);
  memcpy(name->text, text.data(), std::min(text.size(), sizeof name->text - 1));
}

template <typename T>
absl::Status ReadAt(int fd, size_t offset, T* value) {
  const ssize_t n = pread(fd, value, sizeof(T), static_cast<off_t>(offset));
  if (n < 0) return ErrnoStatus("flight recorder");
  if (n != static_cast<ssize_t>(sizeof(T))) return absl::InvalidArgumentError("flight recorder: truncated");
  return absl::OkStatus();
}

// Replaces unprintable bytes, so that a string field of protobuf accepts the text.
std::string TextOf(const Name& name) {
  std::string text(name.text, strnlen(name.text, sizeof name.text - 1));
  for (char& c : text) c = absl::ascii_isprint(static_cast<unsigned char>(c)) ? c : '?';
  return text;
}

absl::StatusOr<Header> ReadHeader(int fd) {
  Header header;
  FSDPD_RETURN_IF_ERROR(ReadAt(fd, 0, &header));
  if (header.magic == 0) return absl::FailedPreconditionError("flight recorder: no progress recorded yet");
  if (header.magic != kMagic) return absl::InvalidArgumentError("flight recorder: invalid header");
  if (header.version != kVersion)
    return absl::InvalidArgumentError(
        absl::StrCat("flight recorder: unsupported version (got ", header.version, ", want ", kVersion, ")"));
  // Checked separately first: the sum may overflow.
  if (header.lanes > kMaxFlightLanes || header.training > kMaxFlightNames ||
      header.evaluation > kMaxFlightNames || header.training + header.evaluation > kMaxFlightNames)
    return absl::InvalidArgumentError("flight recorder: invalid counts");
  return header;
}

// The kernel may copy eight bytes in two parts during a store. A value that is read twice was stored. A lane
// that changes faster than that is not blocked, and any recent word will do.
absl::StatusOr<uint64_t> ReadWord(int fd, uint32_t number) {
  constexpr int kTries = 100;
  uint64_t word = 0, again = 0;
  const size_t at = kWordsAt + number * kFlightWordBytes;
  FSDPD_RETURN_IF_ERROR(ReadAt(fd, at, &word));
  for (int i = 0; i < kTries; ++i) {
    FSDPD_RETURN_IF_ERROR(ReadAt(fd, at, &again));
    if (again == word) return word;
    word = again;
  }
  return word;
}

absl::StatusOr<std::string> NameOfInstruction(int fd, const Header& header, const LaneProgress& at) {
  const auto index = static_cast<uint64_t>(at.instruction);
  const uint64_t named = at.evaluation ? header.evaluation : header.training;
  if (index >= named) return absl::StrCat("#", index);
  Name name;
  const uint64_t place = index + (at.evaluation ? header.training : 0);
  FSDPD_RETURN_IF_ERROR(ReadAt(fd, kNamesAt + place * sizeof(Name), &name));
  return TextOf(name);
}

absl::StatusOr<std::vector<LanePlace>> ReadLanes(int fd, const Header& header) {
  FSDPD_ASSIGN_OR_RETURN(const uint64_t launched, ReadWord(fd, kLaunchedWord));
  const auto newest = static_cast<int64_t>(std::min<uint64_t>(launched, uint64_t{1} << kStepBits));
  std::vector<LanePlace> lanes;
  for (uint32_t lane = 0; lane < header.lanes; ++lane) {
    FSDPD_ASSIGN_OR_RETURN(const uint64_t word, ReadWord(fd, lane));
    if (word == 0) continue;
    LanePlace place;
    place.lane = static_cast<int>(lane);
    place.lane_name = TextOf(header.lane_names[lane]);
    place.exchanges = (header.exchanging >> lane & 1) != 0;
    place.at = UnpackProgress(word);
    if (place.at.recorded) place.at.step = std::max<int64_t>(newest - place.at.step, 0);
    place.at.recorded = false;
    FSDPD_ASSIGN_OR_RETURN(place.instruction, NameOfInstruction(fd, header, place.at));
    lanes.push_back(std::move(place));
  }
  return lanes;
}

}  // namespace

uint64_t PackProgress(const LaneProgress& progress) {
  FSDPD_CHECK(progress.step >= 0 && progress.step >> kStepBits == 0);
  FSDPD_CHECK(progress.instruction >= 0 && progress.instruction >> kInstructionBits == 0);
  return static_cast<uint64_t>(progress.step) << kStepAt |
         static_cast<uint64_t>(progress.instruction) << kInstructionAt |
         (progress.evaluation ? kEvaluation : 0) | (progress.inside ? kInside : kAfter) |
         (progress.recorded ? kRecorded : 0);
}

LaneProgress UnpackProgress(uint64_t word) {
  LaneProgress progress;
  progress.step = static_cast<int64_t>((word & ~kRecorded) >> kStepAt);
  progress.instruction =
      static_cast<int64_t>(word >> kInstructionAt) & ((int64_t{1} << kInstructionBits) - 1);
  progress.evaluation = (word & kEvaluation) != 0;
  progress.inside = (word & kInside) != 0;
  progress.recorded = (word & kRecorded) != 0;
  return progress;
}

absl::StatusOr<int> MakeFlightRecorder() {
  const int fd = memfd_create("fsdpd-flight-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return ErrnoStatus("memfd_create");
  // Allocated, so that no store fails for lack of memory, which would raise SIGBUS.
  int error = posix_fallocate(fd, 0, static_cast<off_t>(kPageBytes));
  if (error == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) error = errno;
  if (error == 0) return fd;
  close(fd);
  if (error == ENOSPC || error == ENOMEM)
    return absl::ResourceExhaustedError(ErrnoText("flight recorder", error));
  return ErrnoStatus("flight recorder", error);
}

absl::StatusOr<std::unique_ptr<FlightRecorder>> FlightRecorder::Map(int fd) {
  struct stat facts = {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &facts) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      facts.st_size != static_cast<off_t>(kPageBytes))
    return absl::FailedPreconditionError(absl::StrCat("descriptor ", fd, " is not a flight recorder"));
  void* memory = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return ErrnoStatus("mmap of the flight recorder");
  return std::unique_ptr<FlightRecorder>(new FlightRecorder(static_cast<std::byte*>(memory)));
}

FlightRecorder::~FlightRecorder() { munmap(memory_, kPageBytes); }

void FlightRecorder::Describe(const std::vector<FlightLane>& lanes, const std::vector<std::string>& training,
                              const std::vector<std::string>& evaluation) {
  FSDPD_CHECK(lanes.size() <= kMaxFlightLanes);
  auto* header = reinterpret_cast<Header*>(memory_);
  header->version = kVersion;
  header->lanes = static_cast<uint32_t>(lanes.size());
  header->exchanging = 0;
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    SetName(&header->lane_names[lane], lanes[lane].name);
    header->exchanging |= (lanes[lane].exchanges ? 1u : 0u) << lane;
  }
  auto* names = reinterpret_cast<Name*>(memory_ + kNamesAt);
  header->training = static_cast<uint32_t>(std::min(training.size(), kMaxFlightNames));
  header->evaluation = static_cast<uint32_t>(std::min(evaluation.size(), kMaxFlightNames - header->training));
  for (uint32_t i = 0; i < header->training; ++i) SetName(names++, training[i]);
  for (uint32_t i = 0; i < header->evaluation; ++i) SetName(names++, evaluation[i]);
  reinterpret_cast<std::atomic<uint64_t>*>(&header->magic)->store(kMagic, std::memory_order_release);
}

std::atomic<uint64_t>* FlightRecorder::word(int lane) {
  FSDPD_CHECK(lane >= 0 && lane <= static_cast<int>(kPhaseWord));
  return reinterpret_cast<std::atomic<uint64_t>*>(memory_ + kWordsAt + lane * kFlightWordBytes);
}

absl::StatusOr<FlightState> ReadFlight(int fd) {
  FlightState state;
  FSDPD_ASSIGN_OR_RETURN(const uint64_t phase, ReadWord(fd, kPhaseWord));
  if (phase <= static_cast<uint64_t>(FlightPhase::kEnding)) state.phase = static_cast<FlightPhase>(phase);
  const absl::StatusOr<Header> header = ReadHeader(fd);
  if (absl::IsFailedPrecondition(header.status())) return state;
  FSDPD_RETURN_IF_ERROR(header.status());
  FSDPD_ASSIGN_OR_RETURN(state.lanes, ReadLanes(fd, *header));
  return state;
}

absl::StatusOr<std::string> DescribeLanePositions(int fd) {
  FSDPD_ASSIGN_OR_RETURN(const Header header, ReadHeader(fd));
  FSDPD_ASSIGN_OR_RETURN(const std::vector<LanePlace> lanes, ReadLanes(fd, header));
  return TextOf(lanes);
}

std::string TextOf(const std::vector<LanePlace>& lanes) {
  std::vector<const LanePlace*> shown, between;
  for (const LanePlace& lane : lanes) (lane.at.inside || lane.lane == 0 ? shown : between).push_back(&lane);
  if (shown.empty()) shown = between;
  std::string text, when;
  for (const LanePlace* place : shown) {
    const std::string step =
        absl::StrCat(place->at.evaluation ? "evaluation after step " : "step ", place->at.step);
    if (step == when) {
      text += ", ";
    } else {
      absl::StrAppend(&text, when.empty() ? "" : "; ", step, ": ");
    }
    when = step;
    absl::StrAppend(&text, place->lane_name, place->at.inside ? " in " : " after ", place->instruction);
  }
  text.resize(std::min(text.size(), kMaxFlightText));
  return text;
}

}  // namespace fsdpd
