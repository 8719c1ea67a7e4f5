// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/completion.h"

#include <fmt/format.h>

#include <vector>

#include "scheduler/policies/registry.h"

namespace vitamin::tools {
namespace {

enum class Value { kNone, kFile, kPolicy, kShell, kOther };  // what stands behind an option

struct Option {
  std::string name, text;  // "--policy"
  Value value = Value::kNone;
};

// A verb with everything that may stand behind it. The program itself is the verb "".
struct Verb {
  std::string name, text;  // "policy list"
  std::vector<Option> options;
  std::vector<std::string> verbs;  // their last words
  std::vector<std::string> verb_texts;
  Value positional = Value::kNone;
};

Value value_of(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return Value::kNone;
  const std::string name = option.get_name(), type = option.get_type_name();
  if (name == "--policy" || name == "NAME") return Value::kPolicy;
  if (name == "SHELL") return Value::kShell;
  const bool file = type == "FILE" || type == "PATH" || type == "DIRECTORY" || name == "FILE" ||
                    name == "--socket" || name == "--file" || name == "--scan";
  return file ? Value::kFile : Value::kOther;
}

void collect(const CLI::App& app, const std::string& name, std::vector<Verb>& verbs) {
  Verb verb{name, app.get_description(), {}, {}, {}, Value::kNone};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) verb.positional = value_of(*option);
    for (const std::string& word : option->get_lnames())
      verb.options.push_back({"--" + word, option->get_description(), value_of(*option)});
  }
  std::vector<const CLI::App*> further;
  for (const CLI::App* sub : app.get_subcommands(nullptr)) {
    verb.verbs.push_back(sub->get_name());
    verb.verb_texts.push_back(sub->get_description());
    further.push_back(sub);
  }
  verbs.push_back(std::move(verb));
  for (const CLI::App* sub : further)
    collect(*sub, name.empty() ? sub->get_name() : name + " " + sub->get_name(), verbs);
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

bool takes_command(const std::string& verb) {
  return verb == "run" || verb == "verify" || verb == "trace record" || verb == "profile";
}

std::string policy_names() {
  std::vector<std::string> names;
  for (const scheduler::PolicyDescription& policy : scheduler::list())
    names.emplace_back(policy.name);
  return joined(names);
}

std::string words_of(Value value) {
  return value == Value::kPolicy ? policy_names() : value == Value::kShell ? "bash zsh fish" : "";
}

// In single quotes, for all three shells (fish knows \' only, which the others have no use for).
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text)
    if (c != '\'') result += c;
  return result + "'";
}

// "'run'|'policy list'": every verb, as the shell function names it while it reads the words.
std::string verb_pattern(const std::vector<Verb>& verbs) {
  std::string pattern;
  for (const Verb& verb : verbs)
    if (!verb.name.empty()) pattern += (pattern.empty() ? "" : "|") + quoted(verb.name);
  return pattern;
}

// What bash and zsh share: which verb the words before the cursor name. `first`: where the index of
// the words begins; `at`: the index of the word at the cursor.
std::string find_verb(const std::vector<Verb>& verbs, std::string_view words, unsigned first,
                      std::string_view at, std::string_view behind) {
  return fmt::format(R"(  local verb='' word_ i
  for ((i = {0}; i < {1}; i++)); do
    word_=${{{2}[i]}}
    if [[ $word_ == -- ]]; then
      {3}
      return
    fi
    case "${{verb:+$verb }}$word_" in
      {4}) verb="${{verb:+$verb }}$word_" ;;
    esac
  done
)",
                     first + 1, at, words, behind, verb_pattern(verbs));
}

std::string bash(const std::vector<Verb>& verbs) {
  std::string script = R"(# bash completion for vitamin, made by `vitamin completion bash`
_vitamin_files() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen -f -- "$1")
}
_vitamin_words() { mapfile -t COMPREPLY < <(compgen -W "$2" -- "$1"); }
_vitamin() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
  COMPREPLY=()
)";
  script += find_verb(verbs, "COMP_WORDS", 0, "COMP_CWORD",
                      "if ((i + 1 == COMP_CWORD)); then\n"
                      "        mapfile -t COMPREPLY < <(compgen -c -- \"$word\")\n"
                      "      else\n"
                      "        _vitamin_files \"$word\"\n"
                      "      fi");
  script += "  case \"$verb:$before\" in\n";
  for (const Verb& verb : verbs)
    for (const Option& option : verb.options) {
      if (option.value == Value::kNone) continue;
      const std::string words = words_of(option.value);
      script += fmt::format(
          "    '{}:{}') {} ;;\n", verb.name, option.name,
          option.value == Value::kFile ? "_vitamin_files \"$word\"; return"
          : words.empty()              ? "return"
                          : fmt::format("_vitamin_words \"$word\" {}; return", quoted(words)));
    }
  script += "  esac\n  case $verb in\n";
  for (const Verb& verb : verbs) {
    std::vector<std::string> words = verb.verbs;
    for (const Option& option : verb.options) words.push_back(option.name);
    if (takes_command(verb.name)) words.emplace_back("--");
    if (const std::string more = words_of(verb.positional); !more.empty()) words.push_back(more);
    script += fmt::format("    {}) ", quoted(verb.name));
    if (verb.positional == Value::kFile || verb.positional == Value::kPolicy)
      script += "[[ $word == -* || -z $word ]] || _vitamin_files \"$word\"\n      ";
    script += fmt::format("COMPREPLY+=($(compgen -W {} -- \"$word\")) ;;\n", quoted(joined(words)));
  }
  script += R"sh(  esac
}
complete -F _vitamin vitamin
# vitamind has no verbs: its options are what its help says.
_vitamind() {
  _vitamin_files "${COMP_WORDS[COMP_CWORD]}"
  [[ ${COMP_WORDS[COMP_CWORD]} != -* ]] ||
    _vitamin_words "${COMP_WORDS[COMP_CWORD]}" \
      "$("${COMP_WORDS[0]}" --help 2>/dev/null | sed -nE 's/^ +(-.,)?(--[a-z-]+).*/\2/p')"
}
complete -F _vitamind vitamind
)sh";
  return script;
}

// "'run:Run a program'": zsh's way to say a word and what it means.
std::string described(const std::vector<std::string>& words,
                      const std::vector<std::string>& texts) {
  std::string list;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string text;
    for (const char c : texts[i]) text += c == ':' ? std::string("\\:") : std::string(1, c);
    list += " " + quoted(words[i] + ":" + text);
  }
  return list;
}

std::string zsh(const std::vector<Verb>& verbs) {
  std::string script = R"(#compdef vitamin
# zsh completion for vitamin, made by `vitamin completion zsh`
_vitamin() {
  local before=${words[CURRENT-1]}
  local -a listed
)";
  script += find_verb(verbs, "words", 1, "CURRENT",
                      "((i + 1 == CURRENT)) && _command_names -e || _files");
  script += "  case \"$verb:$before\" in\n";
  for (const Verb& verb : verbs)
    for (const Option& option : verb.options) {
      if (option.value == Value::kNone) continue;
      const std::string words = words_of(option.value);
      script += fmt::format("    '{}:{}') {} ;;\n", verb.name, option.name,
                            option.value == Value::kFile ? "_files; return"
                            : words.empty()              ? "return"
                                                         : "compadd -- " + words + "; return");
    }
  script += "  esac\n  case $verb in\n";
  for (const Verb& verb : verbs) {
    std::vector<std::string> names, texts;
    for (const Option& option : verb.options) {
      names.push_back(option.name);
      texts.push_back(option.text);
    }
    if (takes_command(verb.name)) {
      names.emplace_back("--");
      texts.emplace_back("the command follows");
    }
    script += fmt::format("    {})\n", quoted(verb.name));
    if (!verb.verbs.empty())
      script += fmt::format("      listed=({})\n      _describe -t verbs verb listed\n",
                            described(verb.verbs, verb.verb_texts));
    if (const std::string more = words_of(verb.positional); !more.empty())
      script += "      compadd -- " + more + "\n";
    if (verb.positional == Value::kFile || verb.positional == Value::kPolicy)
      script += "      _files\n";
    script += fmt::format("      listed=({})\n      _describe -o -t options option listed ;;\n",
                          described(names, texts));
  }
  return script + "  esac\n}\n_vitamin \"$@\"\n";
}

std::string fish(const std::vector<Verb>& verbs) {
  std::string known;
  for (const Verb& verb : verbs)
    if (!verb.name.empty()) known += " " + quoted(verb.name);
  std::string script =
      fmt::format(R"(# fish completion for vitamin, made by `vitamin completion fish`
function __vitamin_at
    set -l verb ''
    for word in (commandline -opc)[2..-1]
        test "$word" = -- && return 1
        set -l longer (string trim -- "$verb $word")
        contains -- "$longer"{} && set verb $longer
    end
    test "$verb" = "$argv[1]"
end
function __vitamin_command
    set -l tokens (commandline -opc)
    set -l mark (contains -i -- -- $tokens) || return 1
    complete -C (string join ' ' -- $tokens[(math $mark + 1)..-1] (commandline -ct))
end
complete -c vitamin -f
complete -c vitamin -n 'contains -- -- (commandline -opc)' -a '(__vitamin_command)'
)",
                  known);
  for (const Verb& verb : verbs) {
    const std::string at =
        fmt::format("complete -c vitamin -n \"__vitamin_at {}\"", quoted(verb.name));
    for (std::size_t i = 0; i < verb.verbs.size(); ++i)
      script += fmt::format("{} -a {} -d {}\n", at, verb.verbs[i], quoted(verb.verb_texts[i]));
    if (const std::string more = words_of(verb.positional); !more.empty())
      script += fmt::format("{} -a {}\n", at, quoted(more));
    if (verb.positional == Value::kFile || verb.positional == Value::kPolicy)
      script += at + " -F\n";
    for (const Option& option : verb.options) {
      const std::string words = words_of(option.value);
      script += fmt::format("{} -l {} -d {}{}\n", at, option.name.substr(2), quoted(option.text),
                            option.value == Value::kNone   ? ""
                            : option.value == Value::kFile ? " -r -F"
                            : words.empty()                ? " -x"
                                                           : " -x -a " + quoted(words));
    }
  }
  return script;
}

}  // namespace

std::optional<std::string> completion_script(const CLI::App& app, std::string_view shell) {
  std::vector<Verb> verbs;
  collect(app, "", verbs);
  if (shell == "bash") return bash(verbs);
  if (shell == "zsh") return zsh(verbs);
  if (shell == "fish") return fish(verbs);
  return std::nullopt;
}

}  // namespace vitamin::tools
