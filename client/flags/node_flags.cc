#include "client/flags/node_flags.h"

#include "base/api/call_limits.h"
#include "client/flags/flag_checks.h"

namespace fsdpd {
namespace {

void AddNodeArgument(CLI::App* command, CommandLine* line) {
  AddOption(command, "NODE", &line->node, "", "Name of the node")->required();
}

void AddCordon(CLI::App* app, CommandLine* line) {
  CLI::App* cordon = AddCommand(
      app, "cordon",
      "Mark nodes as unschedulable until `uncordon`. Running jobs continue. A cordon survives restarts "
      "of the coordinator and of agents.",
      "  fsdpctl cordon node-7 --reason \"a fan is broken\"\n"
      "  fsdpctl cordon node-7 node-8");
  CLI::App* uncordon =
      AddCommand(app, "uncordon", "Mark nodes as schedulable.", "  fsdpctl uncordon node-7 node-8");
  for (CLI::App* command : {cordon, uncordon})
    AddOption(command, "NODE", &line->node_names, "", "Names of nodes")->required();
  cordon->add_option("--reason", line->reason, "Show a reason with the node and its waiting jobs")
      ->type_name("TEXT");
}

void AddDrain(CLI::App* app, CommandLine* line) {
  CLI::App* drain = AddCommand(app, "drain",
                               "Cordon a node and move its jobs, which save and resume elsewhere. This does "
                               "not use an attempt. `uncordon` ends the drain.",
                               "  fsdpctl drain node-7 --reason \"gets a new disk\" --wait\n"
                               "  fsdpctl drain node-7 --force");
  AddNodeArgument(drain, line);
  drain->add_option("--reason", line->reason, "Show a reason with the node and its waiting jobs")
      ->type_name("TEXT");
  AddOption(drain, "--grace", &line->grace_seconds, "SECONDS",
            "Send SIGKILL to ranks after this time; default 600, at most 3600",
            WholeNumber(1, kMaxGraceSeconds));
  drain->add_flag("--force", line->force, "Also move jobs without checkpoints, which restart from step 1");
  CLI::Option* wait = drain->add_flag("--wait", line->wait, "Block until no job is on the node");
  AddOption(drain, "--timeout", &line->wait_timeout_seconds, "SECONDS",
            "With --wait: limit the time; default: no limit", CheckWaitSeconds)
      ->needs(wait);
}

void AddNode(CLI::App* app, CommandLine* line) {
  CLI::App* node = AddCommand(app, "node", "Remove a node whose agent is not coming back.",
                              "  fsdpctl node delete node-7\n"
                              "  fsdpctl node delete node-7 --force");
  node->require_subcommand(1);
  CLI::App* remove = AddCommand(
      node, "delete",
      "Delete a node that is lost or has left, with its cordon and preflight result. An agent of that name "
      "may register again.",
      "  fsdpctl node delete node-7\n"
      "  fsdpctl node delete node-7 --force");
  AddNodeArgument(remove, line);
  remove->add_flag("--force", line->force, "Delete it although ranks on the lost node may still run");
}

}  // namespace

void AddNodeCommands(CLI::App* app, CommandLine* line) {
  AddCommand(app, "nodes", "List the agents and their free slots, and why nodes are cordoned.",
             "  fsdpctl nodes\n  fsdpctl nodes -o json");
  AddCordon(app, line);
  CLI::App* preflight = AddCommand(
      app, "preflight",
      "Run the preflight of an idle node and show the result. A node below the limits is cordoned.",
      "  fsdpctl preflight node-7");
  AddNodeArgument(preflight, line);
  AddDrain(app, line);
  AddNode(app, line);
}

}  // namespace fsdpd
