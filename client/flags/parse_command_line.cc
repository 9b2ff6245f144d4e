#include "client/flags/parse_command_line.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <cstdlib>

#include "base/api/call_limits.h"
#include "base/api/principal.h"
#include "base/net/address.h"
#include "base/process/cli_app.h"
#include "base/rank/trace_file.h"
#include "base/spec_text/located_violation.h"
#include "base/text.h"
#include "client/connect/outcome.h"
#include "client/connect/wait_condition.h"
#include "client/flags/event_flags.h"
#include "client/flags/flag_checks.h"
#include "client/flags/list_flags.h"
#include "client/flags/node_flags.h"
#include "client/flags/plugin_verbs.h"
#include "client/flags/suggest_command.h"
#include "client/flags/verb_flags.h"
#include "client/spec/named_checkpoint.h"
#include "client/spec/spec_array.h"

namespace fsdpd {
namespace {

constexpr char kAbout[] =
    R"(fsdpctl controls training jobs of an fsdpd coordinator.
A job is described by a spec (YAML or JSON). An invalid spec is rejected with all its errors; `plan` shows what a
valid one would do before it runs. Data is printed to stdout, messages to stderr.)";

constexpr char kFooter[] = R"(
Examples:
  fsdpctl validate -f job.yaml
  fsdpctl plan -f job.yaml --offline
  fsdpctl submit -f job.yaml --follow
  fsdpctl get --state running -o json

Exit codes:
  0 success   1 job failed or cannot meet the condition, or specs differ   2 usage error   3 spec rejected
  4 not found   5 server or node unavailable   6 timeout   7 any other failure   8 output not written
  9 corrupt checkpoint   10 checkpoints differ   130 interrupted

Environment:
  FSDPD_SERVER          default of --server
  FSDPD_COORDINATOR_CA  default of --coordinator-ca
  FSDPD_TOKEN_FILE      default of --token-file
  FSDPD_CONTEXT         default of --context
  FSDPD_CONFIG          path of the contexts file (default: ~/.config/fsdpd/contexts.yaml)
  FSDPD_TOKEN           the token itself, if no file is given; sent over TLS only
  NO_COLOR              any value disables colors
  COLUMNS               width of the screen, if the terminal does not report it)";

constexpr int kMaxProfiledRanks = 1024;  // Ranks are threads of one process, and measure in parallel.

// Checks all entries of a list, so that an invalid one is reported before the client calls another one.
std::string CheckServer(std::string& servers) {
  for (const absl::string_view entry : absl::StrSplit(servers, ',')) {
    const absl::string_view server = absl::StripAsciiWhitespace(entry);
    if (absl::StrContains(server, "://"))
      return absl::StrCat("'", server, "' is a URL; write only HOST:PORT, for example 127.0.0.1:7777");
    const absl::StatusOr<HostPort> address = ParseHostPort(server);
    if (address.ok() && address->port > 0) continue;
    const bool one = server.size() == servers.size();
    return absl::StrCat("'", server, "' is not HOST:PORT", one ? "" : absl::StrCat(", in '", servers, "'"));
  }
  return "";
}

std::string CheckFrom(std::string& text) {
  const absl::StatusOr<CheckpointChoice> choice = ParseCheckpointChoice(text);
  return choice.ok() ? "" : absl::StrCat(std::string(choice.status().message()), "; write JOB or JOB@STEP");
}

std::string CheckArray(std::string& array) { return std::string(ArrayOverrides({array}).status().message()); }

std::string CheckProject(std::string& name) { return std::string(CheckProjectName(name).message()); }

void AddSpecFlags(CLI::App* command, CommandLine* line) {
  AddOption(command, "-f,--file", &line->file, "FILE",
            "Read the spec (YAML or JSON) from FILE; - reads stdin")
      ->required();
  command
      ->add_option("--set", line->sets,
                   "Override a field of the spec, for example train.steps=20; repeatable")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
}

CLI::Option* AddSearchFlags(CLI::App* plan, CommandLine* line) {
  CLI::Option* search = plan->add_flag(
      "--search", line->search, "Search meshes, strategies, micro-batches and recompute; show the 5 fastest");
  plan->add_option("--hold", line->hold,
                   "With --search: keep a field unchanged, for example parallel.tensor; repeatable")
      ->needs(search)
      ->type_name("PATH")
      ->allow_extra_args(false);
  AddOption(plan, "--write", &line->write, "FILE",
            "With --search: write the fastest spec to FILE, for submit -f")
      ->needs(search);
  return search;
}

void AddArrayFlag(CLI::App* submit, CLI::Option* follow, CommandLine* line) {
  AddOption(submit, "--array", &line->arrays, "PATH=VALUE,VALUE",
            "Submit a job per value, or per combination if repeated; names are numbered", CheckArray)
      ->allow_extra_args(false)
      ->excludes(follow);
}

void AddSubmitCommand(CLI::App* app, CommandLine* line) {
  CLI::App* submit =
      AddCommand(app, "submit",
                 "Submit a job. When the command returns, the job is stored and does not depend on fsdpctl.",
                 "  fsdpctl submit -f job.yaml\n"
                 "  fsdpctl submit -f job.yaml --follow --set train.steps=20\n"
                 "  fsdpctl submit -f job.yaml --from tiny-llama-k3x9q2@200\n"
                 "  fsdpctl submit -f job.yaml --after tiny-llama-k3x9q2\n"
                 "  fsdpctl submit -f job.yaml --array optimizer.adamw.lr=1e-4,3e-4\n"
                 "  cat job.yaml | fsdpctl submit -f - -o json");
  AddSpecFlags(submit, line);
  CLI::Option* follow =
      submit->add_flag("--follow", line->follow, "Watch the job until it ends, and exit with its result");
  submit
      ->add_option("--request-id", line->request_id,
                   "Make submit idempotent: the same id returns the same job")
      ->check(NotEmpty());
  AddOption(submit, "--from", &line->from, "JOB[@STEP]",
            "Start from a job's newest or given checkpoint (sets checkpoint.load)", CheckFrom);
  AddOption(submit, "--record", &line->record, "FILE",
            "With --follow: append step reports to FILE as JSON lines")
      ->needs(follow);
  AddOption(submit, "--after", &line->after, "JOB[,JOB]",
            "Queue the job until these jobs (at most 64) have succeeded")
      ->delimiter(',')
      ->allow_extra_args(false);
  submit->add_flag("--preemptible", line->preemptible,
                   "Allow jobs of higher priority to preempt the job; needs checkpoint.dir");
  AddArrayFlag(submit, follow, line);
  AddOption(submit, "--project", &line->project, "PROJECT",
            "Charge the quota of PROJECT; default: that of your token", CheckProject);
}

void AddSpecCommands(CLI::App* app, CommandLine* line) {
  AddSubmitCommand(app, line);
  CLI::App* validate =
      AddCommand(app, "validate", "Validate a spec and report all its errors, without submitting it.",
                 "  fsdpctl validate -f job.yaml\n"
                 "  fsdpctl validate -f job.yaml --offline");
  AddSpecFlags(validate, line);
  validate->add_flag("--offline", line->offline, "Validate without a coordinator");
  CLI::App* plan = AddCommand(app, "plan",
                              "Show the plan of a spec: memory, step program and predicted step time. Values "
                              "chosen for `auto` are shown with their reasons.",
                              "  fsdpctl plan -f job.yaml\n"
                              "  fsdpctl plan -f job.yaml --offline --program\n"
                              "  fsdpctl plan -f job.yaml --offline --profile h100 --picture step.svg\n"
                              "  fsdpctl plan -f job.yaml --search --write fastest.yaml");
  AddSpecFlags(plan, line);
  plan->add_flag("--offline", line->offline,
                 "Plan without a coordinator; only --profile sets a memory budget");
  CLI::Option* program = plan->add_flag("--program", line->program, "List every instruction of the step");
  AddOption(plan, "--profile", &line->profile, "NAME|FILE",
            "Predict for a device: cpu, h100, h200 or a file; sets the memory budget");
  CLI::Option* trace =
      AddOption(plan, "--trace", &line->trace, "FILE", "Write a trace of the predicted step, for Perfetto");
  CLI::Option* picture = AddOption(plan, "--picture", &line->picture, "FILE",
                                   "Write an SVG of the predicted step: lanes and memory over time");
  AddSearchFlags(plan, line)->excludes(program)->excludes(trace)->excludes(picture);
}

void AddMigrateCommand(CLI::App* app, CommandLine* line) {
  CLI::App* migrate = AddCommand(
      app, "migrate",
      "Convert a training run to a spec. Reads run_config.yaml of Megatron Bridge, the arguments of a "
      "Megatron-LM script, or a configuration of torchtitan, DeepSpeed or accelerate. Unsupported, changed "
      "and ignored settings are reported on stderr.",
      "  fsdpctl migrate -f run_config.yaml > job.yaml\n"
      "  fsdpctl migrate -f llama3_8b.toml --nodes 2 > job.yaml\n"
      "  fsdpctl migrate -f pretrain.args --nodes 8 --name llama3-70b > job.yaml");
  AddOption(migrate, "-f,--file", &line->file, "FILE",
            "Read the configuration or arguments from FILE; - reads stdin")
      ->required();
  AddOption(migrate, "--nodes", &line->nodes, "N",
            "Set the number of nodes; default: torchrun's --nnodes, or 1", WholeNumber(1));
  AddOption(migrate, "--ranks-per-node", &line->ranks_per_node, "N",
            "Set the GPUs per node; default: torchrun's --nproc-per-node, or 8", WholeNumber(1));
  migrate->add_option("--name", line->name, "Set the name of the job")->type_name("NAME");
}

void AddProfileCommand(CLI::App* app, CommandLine* line) {
  CLI::App* profile = AddCommand(
      app, "profile-device",
      "Measure the devices and links of this node, and print a profile. `plan --profile FILE` reads it "
      "(JSON, or YAML with -o yaml). Takes a few seconds; stop other workloads on the node first.",
      "  fsdpctl profile-device > my.json\n"
      "  fsdpctl profile-device --device cuda --ranks 8 > my.json\n"
      "  fsdpctl plan -f job.yaml --offline --profile my.json");
  AddOption(profile, "--device", &line->device, "KIND", "Measure devices of this kind: cpu or cuda",
            OneOf({"cpu", "cuda"}))
      ->capture_default_str();
  AddOption(profile, "--ranks", &line->ranks, "N",
            "Run N ranks in parallel; default: 2 on CPU, all devices on CUDA",
            WholeNumber(1, kMaxProfiledRanks));
  AddOption(profile, "--rank-binary", &line->rank_binary, "PATH",
            "Use this fsdpd-rank; default: next to fsdpctl");
}

// The options of commands that write a checkpoint.
void AddWrittenFiles(CLI::App* command, CommandLine* line) {
  AddOption(command, "--dtype", &line->dtype, "TYPE",
            "Write bfloat16 (default of hf), float16 or float32 (default of others)",
            OneOf({"bfloat16", "float16", "float32"}));
  command
      ->add_option("--shard-bytes", line->shard_bytes,
                   "Limit the size of each file; a larger tensor gets its own")
      ->type_name("SIZE")
      ->capture_default_str();
  command->add_flag("--overwrite", line->overwrite,
                    "Discard TARGET.part of an interrupted conversion; does not replace TARGET");
}

void AddCkptConvert(CLI::App* ckpt, CommandLine* line) {
  CLI::App* convert = AddCommand(
      ckpt, "convert",
      "Convert the parameters of a checkpoint to another format. Between native checkpoints and torch_dist "
      "the optimizer state is converted too. SOURCE is a native checkpoint, a Hugging Face directory, "
      "torch_dist of Megatron-Core, or a checkpoint of FSDP2 or torchtitan. A checkpoint of a LoRA job "
      "converts only to peft. TARGET appears when it is complete. To resume an interrupted conversion, run "
      "the same "
      "command again.",
      "  fsdpctl ckpt convert Llama-3.1-8B start --to fsdp_dtensor\n"
      "  fsdpctl ckpt convert runs/7/iter_0001000 out --to hf --spec job.yaml\n"
      "  fsdpctl ckpt convert runs/7/iter_0001000 out --to hf --config Llama-3.1-8B/config.json --dtype "
      "float32\n"
      "  fsdpctl ckpt convert runs/adapters out --to peft");
  AddOption(convert, "SOURCE", &line->file, "", "Directory to read")->required();
  AddOption(convert, "TARGET", &line->target, "", "Directory to create; must not exist, or be empty")
      ->required();
  AddOption(convert, "--to", &line->to, "FORMAT",
            "Write fsdp_dtensor (native), hf, torch_dist (Megatron-Core) or peft (LoRA)",
            OneOf({"fsdp_dtensor", "hf", "torch_dist", "peft"}))
      ->required();
  AddOption(convert, "--config", &line->config, "FILE",
            "Read the model from a config.json; default: the one in SOURCE");
  AddOption(convert, "--spec", &line->spec, "FILE",
            "Read the model and optimizer settings from the spec of a job");
  AddWrittenFiles(convert, line);
  convert->add_flag("--no-optimizer", line->no_optimizer, "Convert only the parameters");
}

void AddCkptMerge(CLI::App* ckpt, CommandLine* line) {
  CLI::App* merge = AddCommand(
      ckpt, "merge",
      "Merge LoRA adapters into their base model, as a Hugging Face directory. ADAPTERS is a checkpoint of a "
      "LoRA job, or a directory of PEFT.",
      "  fsdpctl ckpt merge runs/7 merged\n"
      "  fsdpctl ckpt merge runs/7/peft merged --base Llama-3.1-8B --dtype float32");
  AddOption(merge, "ADAPTERS", &line->file, "", "Directory with the adapters")->required();
  AddOption(merge, "TARGET", &line->target, "", "Directory to create; must not exist, or be empty")
      ->required();
  AddOption(merge, "--base", &line->base, "DIR",
            "Read the base model from DIR; default: the path that ADAPTERS records");
  AddWrittenFiles(merge, line);
}

void AddCkptCommand(CLI::App* app, CommandLine* line) {
  CLI::App* ckpt = AddCommand(app, "ckpt",
                              "Inspect, verify, compare, convert and merge checkpoints. Pickled data is "
                              "decoded without executing it.",
                              "  fsdpctl ckpt inspect runs/7/iter_0001000\n"
                              "  fsdpctl ckpt verify runs/7/iter_0001000\n"
                              "  fsdpctl ckpt diff runs/7/iter_0001000 runs/8/iter_0001000\n"
                              "  fsdpctl ckpt convert Llama-3.1-8B start --to fsdp_dtensor");
  ckpt->require_subcommand(1);
  const auto add = [&](const char* name, const char* about) {
    CLI::App* command = AddCommand(ckpt, name, about, absl::StrCat("  fsdpctl ckpt ", name, " DIR\n"));
    AddOption(command, "DIR", &line->file, "",
              "Checkpoint (.metadata or safetensors), or directory of checkpoints")
        ->required();
  };
  add("inspect",
      "List tensors, values and files, and defects that metadata shows. In a directory of checkpoints, "
      "inspect "
      "the newest.");
  add("verify",
      "Read all data, compare it with its checksums, and report all defects. In a directory of checkpoints, "
      "verify all, newest first.");
  AddCkptConvert(ckpt, line);
  AddCkptMerge(ckpt, line);
  CLI::App* diff = AddCommand(
      ckpt, "diff",
      "Compare two checkpoints: names, shapes, types and values. If the formats differ, compare the "
      "parameters "
      "of the model that a checkpoint or a flag describes. Exit code 0 if they are equal, 10 if not.",
      "  fsdpctl ckpt diff runs/7/iter_0001000 runs/8/iter_0001000\n"
      "  fsdpctl ckpt diff fsdp2/step-1000 megatron/iter_0001000 --config Llama-3.1-8B/config.json");
  AddOption(diff, "FIRST", &line->file, "", "First directory")->required();
  AddOption(diff, "SECOND", &line->target, "", "Second directory")->required();
  AddOption(diff, "--config", &line->config, "FILE",
            "Read the model from a config.json, if no checkpoint has it");
  AddOption(diff, "--spec", &line->spec, "FILE", "Read the model from the spec of a job");
}

void AddJobArgument(CLI::App* command, CommandLine* line) {
  AddOption(command, "JOB", &line->job, "", "Id of the job, or a unique prefix")->required();
}

void AddWatchCommands(CLI::App* app, CommandLine* line) {
  CLI::App* get = AddCommand(app, "get", "List jobs, newest first, or show the named ones.",
                             "  fsdpctl get\n"
                             "  fsdpctl get --state running,queued\n"
                             "  fsdpctl get tiny-llama-k3x9q2 -o yaml");
  AddOption(get, "JOB", &line->jobs, "", "Ids of jobs; default: all");
  get->add_option("--state", line->states, "List only jobs in these states")
      ->delimiter(',')
      ->type_name("STATE")
      ->allow_extra_args(false)
      ->check(CLI::IsMember(StateNames(), CLI::ignore_case));
  CLI::Option* project =
      AddOption(get, "--project", &line->project, "PROJECT", "List only jobs of this project", CheckProject);
  AddOption(get, "--array", &line->array, "ARRAY", "List only jobs of this array");
  get->add_flag("--all-projects", line->all_projects,
                "List jobs of all projects; default: those of your token's project")
      ->excludes(project);
  AddGetFlags(get, line);
  CLI::App* describe = AddCommand(app, "describe",
                                  "Show a job: state, reason, placement, memory, events and failures. "
                                  "`describe node NODE` shows a node and its preflight result.",
                                  "  fsdpctl describe tiny-llama-k3x9q2\n"
                                  "  fsdpctl describe node node-7");
  AddJobArgument(describe, line);
  AddOption(describe, "NODE", &line->node, "", "After `node`: name of the node");
  CLI::App* watch = AddCommand(app, "watch", "Watch a job until it ends, and exit with its result.",
                               "  fsdpctl watch tiny-llama-k3x9q2\n"
                               "  fsdpctl watch tiny-llama-k3x9q2 --record steps.jsonl");
  AddJobArgument(watch, line);
  AddOption(watch, "--record", &line->record, "FILE", "Append step reports to FILE as JSON lines");
}

std::string CheckPrincipal(std::string& name) { return std::string(CheckPrincipalName(name).message()); }

void AddTokenCommand(CLI::App* app, CommandLine* line) {
  CLI::App* token =
      AddCommand(app, "token", "Create tokens that authenticate users to a coordinator.",
                 "  fsdpctl token new alice --role submitter --out alice.token >> /etc/fsdpd/tokens");
  token->require_subcommand(1);
  CLI::App* make =
      AddCommand(token, "new",
                 "Create a token in a file for its user. Prints the line for the coordinator's --tokens "
                 "file, which has only the hash.",
                 "  fsdpctl token new alice --role submitter --out alice.token >> /etc/fsdpd/tokens");
  AddOption(make, "NAME", &line->principal, "", "Name of the user; may be in use twice during rotation",
            CheckPrincipal)
      ->required();
  std::vector<std::string> roles;
  for (const PrincipalRole role : kPrincipalRoles) roles.push_back(NameOf(role));
  AddOption(make, "--role", &line->role, "ROLE",
            "Grant viewer (read), submitter (own jobs), operator (all jobs, nodes) or admin", OneOf(roles))
      ->required();
  AddOption(make, "--project", &line->project, "PROJECT",
            "Charge jobs of the user to this project; default: none", CheckProject);
  AddOption(make, "--out", &line->out, "FILE", "Write the token to FILE (mode 0600), which must not exist")
      ->required();
}

void AddOtherCommands(CLI::App* app, CommandLine* line) {
  CLI::App* logs = AddCommand(app, "logs", "Print the stdout and stderr of a job's ranks.",
                              "  fsdpctl logs tiny-llama-k3x9q2 --tail 20\n"
                              "  fsdpctl logs -f tiny-llama-k3x9q2 --rank 0");
  AddJobArgument(logs, line);
  logs->add_flag("-f,--follow", line->follow, "Follow the log until the job ends");
  AddOption(logs, "--rank", &line->rank, "N", "Print only this rank", WholeNumber(0));
  CLI::Option* attempt = AddOption(logs, "--attempt", &line->attempt, "N",
                                   "Print this attempt; default: the newest", WholeNumber(1));
  AddOption(logs, "--tail", &line->tail, "N", "Print only the last N lines of each rank, at most 100,000",
            WholeNumber(1, kMaxTailLines));
  AddLogFlags(logs, line);
  logs->get_option("--previous")->excludes(attempt);
  CLI::App* trace = AddCommand(
      app, "trace",
      "Trace the next steps of a running job on all ranks. A trace shows instructions by lane and unit, "
      "their dependencies, and memory. The job continues. Writes one file for https://ui.perfetto.dev.",
      "  fsdpctl trace tiny-llama-k3x9q2\n"
      "  fsdpctl trace tiny-llama-k3x9q2 --steps 3 --out step.json\n"
      "  fsdpctl trace tiny-llama-k3x9q2 --memory\n"
      "  fsdpctl trace tiny-llama-k3x9q2 --written");
  AddJobArgument(trace, line);
  CLI::Option* steps =
      AddOption(trace, "--steps", &line->steps, "N", "Trace N steps", WholeNumber(1, kMaxTracedSteps))
          ->capture_default_str();
  CLI::Option* written =
      trace->add_flag("--written", line->written, "Fetch existing traces instead of tracing new steps")
          ->excludes(steps);
  trace
      ->add_flag("--memory", line->memory,
                 "Write a memory snapshot per rank and step, for https://pytorch.org/memory_viz")
      ->excludes(written);
  AddOption(trace, "--attempt", &line->attempt, "N",
            "With --written: fetch this attempt; default: the newest", WholeNumber(1))
      ->needs(written);
  AddOption(trace, "--rank", &line->rank, "N", "Fetch only traces of this rank", WholeNumber(0));
  AddOption(trace, "--out", &line->out, "FILE", "Write the trace to FILE; default: JOB.trace.json");
  AddTokenCommand(app, line);
  AddCommand(app, "version", "Print the versions of fsdpctl and the coordinator.", "  fsdpctl version");
}

void AddReason(CLI::App* command, CommandLine* line) {
  command->add_option("--reason", line->reason, "Store a reason in the events of the job")->type_name("TEXT");
}

CLI::Option* AddJobsArgument(CLI::App* command, CommandLine* line) {
  return AddOption(command, "JOB", &line->jobs, "", "Ids of jobs");
}

void AddLifeCommands(CLI::App* app, CommandLine* line) {
  CLI::App* cancel = AddCommand(
      app, "cancel", "Cancel jobs. Ranks save a checkpoint, if configured, within the grace period and exit.",
      "  fsdpctl cancel tiny-llama-k3x9q2 --reason \"wrong data\"\n"
      "  fsdpctl cancel --array sweep-4dfz2k\n"
      "  fsdpctl cancel tiny-llama-k3x9q2 --grace 60 --wait");
  CLI::Option* job = AddJobsArgument(cancel, line);
  AddOption(cancel, "--array", &line->array, "ARRAY", "Cancel all jobs of an array that have not ended")
      ->excludes(job);
  AddReason(cancel, line);
  AddOption(cancel, "--grace", &line->grace_seconds, "SECONDS",
            "Send SIGKILL after this time; default 10, at most 3600; 0: do not save",
            WholeNumber(0, kMaxGraceSeconds));
  cancel->add_flag("--wait", line->wait, "Block until the jobs have ended");
  CLI::App* pause =
      AddCommand(app, "pause",
                 "Checkpoint jobs, release their slots, and hold them until `resume`. Queued jobs are held.",
                 "  fsdpctl pause tiny-llama-k3x9q2 --wait\n"
                 "  fsdpctl pause tiny-llama-k3x9q2 --reason \"node-3 gets a new disk\"");
  AddJobsArgument(pause, line)->required();
  AddReason(pause, line);
  AddOption(pause, "--grace", &line->grace_seconds, "SECONDS",
            "Send SIGKILL after this time; default 600, at most 3600; 0: do not save",
            WholeNumber(0, kMaxGraceSeconds));
  pause->add_flag("--wait", line->wait,
                  "Block until jobs are paused; exit code 7 if steps are lost or memory stays used");
  CLI::App* resume = AddCommand(app, "resume", "Resume paused jobs from their checkpoints.",
                                "  fsdpctl resume tiny-llama-k3x9q2");
  AddJobsArgument(resume, line);
  AddReason(resume, line);
  CLI::App* retry = AddCommand(app, "retry",
                               "Retry failed or cancelled jobs under the same ids. They resume from their "
                               "newest checkpoints, with the full number of attempts.",
                               "  fsdpctl retry tiny-llama-k3x9q2");
  AddJobsArgument(retry, line);
  AddReason(retry, line);
  CLI::App* remove = AddCommand(app, "delete", "Delete ended jobs and their logs. Checkpoints stay on disk.",
                                "  fsdpctl delete tiny-llama-k3x9q2 tiny-llama-x1y2z3");
  AddJobsArgument(remove, line)->required();
}

void AddGlobalFlags(CLI::App* app, CommandLine* line) {
  AddOption(app, "--server", &line->server, "HOST:PORT", "Use the coordinator at this address", CheckServer)
      ->envname("FSDPD_SERVER")
      ->default_str(kDefaultServer);
  AddOption(app, "--context", &line->context, "NAME", "Use a coordinator of the contexts file")
      ->envname("FSDPD_CONTEXT");
  AddOption(app, "--coordinator-ca", &line->coordinator_ca, "FILE",
            "Use TLS and trust the CA certificates (PEM) in FILE; default: plaintext")
      ->envname("FSDPD_COORDINATOR_CA");
  AddOption(app, "--token-file", &line->token_file, "FILE", "Authenticate with the token in FILE")
      ->envname("FSDPD_TOKEN_FILE");
  AddOutputFlag(app, line);
  AddOption(app, "--timeout", &line->timeout_seconds, "SECONDS",
            "Limit each call and, if set, cancel/pause --wait; plan --search: 40 s", CheckSeconds)
      ->capture_default_str();
}

const char* PathVariable() {
  const char* path = std::getenv("PATH");
  return path == nullptr ? "" : path;
}

// "; did you mean X?" with the most likely command or flag for an unknown word; "" if none is similar.
std::string Suggestion(const CLI::App& app, const std::string& word) {
  const bool has_command = !app.get_subcommands().empty();
  std::vector<std::string> candidates = {"--help"};
  if (absl::string_view(word).substr(0, 1) == "-") {
    const auto collect = [&](const CLI::App& of) {
      for (const CLI::Option* option : of.get_options()) {
        for (const std::string& name : option->get_lnames()) candidates.push_back("--" + name);
      }
    };
    collect(app);
    for (const CLI::App* command : app.get_subcommands()) collect(*command);
  }
  if (!has_command) {
    for (const CLI::App* command : app.get_subcommands(nullptr)) candidates.push_back(command->get_name());
    // Suggests `version` for `--version`, and `--help` for `help`.
    const std::string bare(absl::StripPrefix(word, "--"));
    for (const std::string& each : candidates) {
      if (bare == absl::StripPrefix(each, "--")) return absl::StrCat("; did you mean ", each, "?");
    }
  } else if (word[0] != '-') {
    // A positional file name, for a command that takes it with -f.
    const CLI::App* command = app.get_subcommands().front();
    const CLI::Option* file = command->get_option_no_throw("--file");
    return file == nullptr ? "" : absl::StrCat("; did you mean -f ", word, "?");
  }
  if (has_command && absl::StartsWith(word, "--filter"))
    return "; it was removed after release 0.1: use --state, --selector or --project, or a condition in -o "
           "jsonpath";
  if (!has_command && !PluginProgram(word, PathVariable()).empty())
    return absl::StrCat("; it is a plugin: write `fsdpctl ", word, " ...`, with flags after it");
  if (const std::string hint = InstallHint(word); !has_command && !hint.empty())
    return absl::StrCat("; it is a plugin that is not installed (", hint, ")");
  const std::string nearest = SuggestCommand(word.substr(0, word.find('=')), candidates);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

int ExplainUsage(const CLI::App& app, const CLI::ParseError& error, Console* console) {
  std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  unknown.erase(std::remove(unknown.begin(), unknown.end(), "--"), unknown.end());
  const std::vector<const CLI::App*> chosen = app.get_subcommands([](const CLI::App*) { return true; });
  const bool has_command = !app.get_subcommands().empty();
  console->err << "fsdpctl: ";
  if (!unknown.empty()) {
    const char* kind = unknown.front()[0] == '-' ? "flag" : has_command ? "argument" : "command";
    console->err << "unknown " << kind << " '" << Escaped(unknown.front()) << "'"
                 << Escaped(Suggestion(app, unknown.front()));
  } else if (!has_command) {
    console->err << "missing command; use one of";
    for (const CLI::App* command : chosen) console->err << " " << command->get_name();
  } else {
    console->err << Escaped(error.what())  // "--state excludes JOB", for one.
                 << (error.get_name() == "ExcludesError" ? "; remove one of them" : "");
  }
  std::string path;
  for (const CLI::App* at = &app; !at->get_subcommands().empty(); path += at->get_name() + " ")
    at = at->get_subcommands().front();
  console->err << " [INVALID_FLAG]\nrun `fsdpctl " << path << "--help` for usage\n";
  return kExitUsage;
}

}  // namespace

std::vector<std::string> CommandNames() {
  CommandLine unused;
  const auto app = MakeApp("", "");
  BuildApp(app.get(), &unused);
  std::vector<std::string> names;
  for (const CLI::App* command : app->get_subcommands(nullptr)) names.push_back(command->get_name());
  return names;
}

void BuildApp(CLI::App* app, CommandLine* line) {
  app->footer(kFooter);
  app->require_subcommand(1);
  app->get_formatter()->column_width(34);
  AddGlobalFlags(app, line);
  AddSpecCommands(app, line);
  AddMigrateCommand(app, line);
  AddProfileCommand(app, line);
  AddCkptCommand(app, line);
  AddWatchCommands(app, line);
  AddVerbs(app, line);
  AddOtherCommands(app, line);
  AddNodeCommands(app, line);
  AddEventCommands(app, line);
  AddLifeCommands(app, line);
  AddLabelFlags(app, line);
  AddListFlags(app, line);
}

std::optional<int> ParseCommandLine(const std::vector<std::string>& arguments, CommandLine* line,
                                    Console* console) {
  const auto app = MakeApp(kAbout, "fsdpctl");
  BuildApp(app.get(), line);
  // Words after a plug-in that is not installed are not commands, although some have the same names.
  const bool is_plugin = !arguments.empty() && !InstallHint(arguments[0]).empty();
  try {
    ParseWords(app.get(), is_plugin ? std::vector<std::string>{arguments[0]} : arguments);
  } catch (const CLI::CallForHelp&) {
    if (app->get_subcommands().empty())
      app->footer(PluginHelp(PluginVerbs(CommandNames(), PathVariable())) + kFooter);
    console->out << app->help();
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return ExplainUsage(*app, error, console);
  }
  line->flags = AccessFlags(arguments);
  const CLI::App* command = app->get_subcommands().front();
  line->command = command->get_name();
  const std::string missing = MissingJobError(*line);
  if (const std::string fault = missing.empty() ? OutputFlagError(*line) : missing; !fault.empty()) {
    console->err << "fsdpctl: " << fault << " [INVALID_FLAG]\n";
    return kExitUsage;
  }
  if (!command->get_subcommands().empty()) line->action = command->get_subcommands().front()->get_name();
  return std::nullopt;
}

}  // namespace fsdpd
