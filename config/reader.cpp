// SPDX-License-Identifier: Apache-2.0
#include "config/reader.h"

#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>

#include "config/pattern.h"
#include "config/schema.h"
#include "policies/nearest.h"

namespace vitamin::config {
namespace {

constexpr const char* kSpecial[] = {"class", "nodes", "devices"};

std::string range_text(std::int64_t low, std::int64_t high, bool duration) {
  auto text = [&](std::int64_t bound) {
    return duration ? duration_text(static_cast<std::uint64_t>(bound)) : std::to_string(bound);
  };
  if (high == std::numeric_limits<std::int64_t>::max()) return "not less than " + text(low);
  return "from " + text(low) + " to " + text(high);
}

// What a value must be, for a message.
template <class Target>
std::string wanted(const Key<Target>& key) {
  switch (key.type) {
    case Type::kText:
      return "a text";
    case Type::kBoolean:
      return "true or false";
    case Type::kInteger:
      return "a whole number " + range_text(key.low, key.high, false);
    case Type::kDuration:
      return "a text of a number and its unit, like \"4ms\", " +
             range_text(key.low, key.high, true);
    case Type::kChoice: {
      std::string text = "one of";
      for (const std::string& choice : key.choices) text += " \"" + choice + "\"";
      return text;
    }
    case Type::kPatterns:
      return "a pattern or a list of patterns";
    case Type::kTable:
      return "a table of texts, numbers or booleans";
  }
  return {};
}

template <class Target>
tl::unexpected<std::string> not_wanted(const Key<Target>& key, const std::string& instead) {
  return tl::unexpected("must be " + wanted(key) + instead);
}

// A number or the index of a text, within the key's bounds.
template <class Target>
tl::expected<Value, std::string> from_integer(const Key<Target>& key, std::int64_t number) {
  if (number < key.low || number > key.high) return not_wanted(key, "");
  return number;
}

template <class Target>
tl::expected<Value, std::string> from_text(const Key<Target>& key, const std::string& text) {
  switch (key.type) {
    case Type::kDuration: {
      const auto ns = duration_ns(text);
      if (!ns) return not_wanted(key, "");
      return from_integer(key, static_cast<std::int64_t>(*ns));
    }
    case Type::kChoice: {
      const auto found = std::find(key.choices.begin(), key.choices.end(), text);
      if (found == key.choices.end())
        return not_wanted(key, policies::did_you_mean(text, key.choices));
      return static_cast<std::int64_t>(found - key.choices.begin());
    }
    case Type::kPatterns:
      if (auto wrong = pattern_problem(text)) return tl::unexpected("the pattern: " + *wrong);
      return Texts{text};
    case Type::kText:
      return text;
    default:
      return not_wanted(key, "");
  }
}

std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "1" : "0";
  return std::nullopt;
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& name, std::vector<Problem>& problems)
      : text_(text), name_(name), problems_(problems) {}

  Layer read(const std::string& host) {
    Layer layer;
    const toml::parse_result parsed = toml::parse(text_, name_);
    if (!parsed) {
      complain(parsed.error().source().begin, std::string(parsed.error().description()));
      return layer;
    }
    root(parsed.table(), layer);
    if (const toml::node* nodes = parsed.table().get("nodes")) read_nodes(*nodes, host, layer);
    return layer;
  }

 private:
  using Entry = std::pair<const toml::key*, const toml::node*>;

  void complain(toml::source_position where, std::string message) {
    problems_.push_back({place(where), std::move(message), line(where)});
  }
  Place place(toml::source_position where) const { return {name_, where.line, where.column}; }
  std::string line(toml::source_position where) const {
    std::string_view rest = text_;
    for (std::uint32_t i = 1; i < where.line; ++i) {
      const std::size_t end = rest.find('\n');
      if (end == rest.npos) return {};
      rest.remove_prefix(end + 1);
    }
    std::string found(rest.substr(0, std::min<std::size_t>(rest.find('\n'), 200)));
    while (!found.empty() && found.back() == '\r') found.pop_back();
    return found;
  }

  // In the order of the file; toml++ sorts by name.
  static std::vector<Entry> entries(const toml::table& table) {
    std::vector<Entry> all;
    for (auto it = table.cbegin(); it != table.cend(); ++it)
      all.emplace_back(&it->first, &it->second);
    std::stable_sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) {
      const auto x = a.first->source().begin, y = b.first->source().begin;
      return x.line != y.line ? x.line < y.line : x.column < y.column;
    });
    return all;
  }

  void root(const toml::table& table, Layer& layer) {
    for (const auto& [key, node] : entries(table)) {
      if (key->str() == "class")
        read_classes(*node, layer);
      else if (key->str() == "devices")
        read_devices(*node, layer);
      else if (key->str() != "nodes" || in_node_)
        setting(*key, *node, "", false, layer.settings);
    }
  }

  // A key of the schema, or a section of keys.
  void setting(const toml::key& key, const toml::node& node, const std::string& prefix,
               bool of_device, Said& said) {
    const std::string path = prefix + std::string(key.str());
    const SettingKey* known = find_setting(path);
    if (known != nullptr && (known->of_device || !of_device)) return value(*known, key, node, said);
    if (is_section(path + ".", of_device)) {
      const toml::table* const section = node.as_table();
      if (section == nullptr) return complain(key.source().begin, "'" + path + "' is a section");
      for (const auto& [inner, value] : entries(*section))
        setting(*inner, *value, path + ".", of_device, said);
      return;
    }
    if (known != nullptr)
      return complain(key.source().begin, "'" + path + "' holds for the node, not for a device");
    complain(key.source().begin,
             "unknown key '" + path + "'" + suggestion(key.str(), prefix, of_device));
  }

  static bool is_section(const std::string& prefix, bool of_device) {
    const auto keys = setting_keys();
    return std::any_of(keys.begin(), keys.end(), [&](const SettingKey& key) {
      return key.path.starts_with(prefix) && (key.of_device || !of_device);
    });
  }

  // A name that may stand here; or the place of one that is known elsewhere.
  std::string suggestion(std::string_view word, const std::string& prefix, bool of_device) const {
    std::vector<std::string> here;
    if (prefix.empty() && !of_device)
      for (const char* name : kSpecial)
        if (!in_node_ || std::string_view(name) != "nodes") here.emplace_back(name);
    for (const SettingKey& key : setting_keys()) {
      if (!key.path.starts_with(prefix) || (of_device && !key.of_device)) continue;
      const std::size_t end = key.path.find('.', prefix.size());
      here.push_back(key.path.substr(prefix.size(), end - prefix.size()));
    }
    std::string text = policies::did_you_mean(word, here);
    if (!text.empty()) return text;
    for (const SettingKey& key : setting_keys())
      if (key.path.ends_with("." + std::string(word))) return "; did you mean '" + key.path + "'?";
    return "";
  }

  template <class Target>
  void value(const Key<Target>& known, const toml::key& key, const toml::node& node, Said& said) {
    SaidOnce result{{}, place(key.source().begin), {}, line(key.source().begin)};
    if (known.type == Type::kTable) {
      if (!read_table(known, node, result)) return;
    } else if (known.type == Type::kPatterns && node.is_array()) {
      if (!read_patterns(*node.as_array(), result)) return;
    } else {
      auto converted = scalar(known, node);
      if (!converted)
        return complain(node.source().begin, "'" + known.path + "' " + converted.error());
      result.value = std::move(*converted);
    }
    said[known.path] = std::move(result);
  }

  template <class Target>
  static tl::expected<Value, std::string> scalar(const Key<Target>& key, const toml::node& node) {
    if (const auto* truth = node.as_boolean(); truth && key.type == Type::kBoolean)
      return truth->get();
    if (const auto* number = node.as_integer(); number && key.type == Type::kInteger)
      return from_integer(key, number->get());
    if (const auto* text = node.as_string()) return from_text(key, text->get());
    return not_wanted(key, "");
  }

  template <class Target>
  bool read_table(const Key<Target>& known, const toml::node& node, SaidOnce& result) {
    const toml::table* const table = node.as_table();
    if (table == nullptr) {
      complain(node.source().begin, "'" + known.path + "' must be " + wanted(known));
      return false;
    }
    TextTable texts;
    for (const auto& [name, entry] : entries(*table)) {
      const auto text = scalar_text(*entry);
      if (!text)
        complain(entry->source().begin,
                 "'" + std::string(name->str()) + "' must be a text, a number or a boolean");
      else
        texts[std::string(name->str())] = *text;
      result.entries[std::string(name->str())] = place(name->source().begin);
    }
    result.value = std::move(texts);
    return true;
  }

  bool read_patterns(const toml::array& array, SaidOnce& result) {
    Texts patterns;
    for (const toml::node& element : array) {
      const auto* text = element.as_string();
      const auto wrong = text == nullptr ? "must be a text" : pattern_problem(text->get());
      if (wrong) {
        complain(element.source().begin, "the pattern: " + *wrong);
        return false;
      }
      patterns.push_back(text->get());
    }
    result.value = std::move(patterns);
    return true;
  }

  void read_classes(const toml::node& node, Layer& layer) {
    const toml::array* const classes = node.as_array();
    if (classes == nullptr || !std::all_of(classes->begin(), classes->end(),
                                           [](const toml::node& e) { return e.is_table(); }))
      return complain(node.source().begin, "classes are written [[class]], in double brackets");
    for (const toml::node& element : *classes) read_class(*element.as_table(), layer);
  }

  void read_class(const toml::table& table, Layer& layer) {
    const auto at = table.source().begin;
    Layer::Class made{{}, place(at), line(at), {}};
    std::vector<std::string> known = {"name"};
    for (const ClassKey& key : class_keys()) known.push_back(key.path);
    for (const auto& [key, node] : entries(table)) {
      if (key->str() == "name") {
        const auto* text = node->as_string();
        made.name = text != nullptr ? text->get() : "";
        continue;
      }
      const auto keys = class_keys();
      const auto found = std::find_if(keys.begin(), keys.end(), [&](const ClassKey& candidate) {
        return candidate.path == key->str();
      });
      if (found == keys.end())
        complain(key->source().begin, "a class has no '" + std::string(key->str()) + "'" +
                                          policies::did_you_mean(key->str(), known));
      else
        value(*found, *key, *node, made.settings);
    }
    check_environment(made);
    if (made.name.empty()) return complain(at, "a class needs a name");
    if (made.name.size() > 63) return complain(at, "a class's name has 63 characters at most");
    for (const Layer::Class& other : layer.classes)
      if (other.name == made.name)
        return complain(at, "the class '" + made.name + "' is there twice in this file");
    layer.classes.push_back(std::move(made));
  }

  void check_environment(const Layer::Class& made) {
    const auto said = made.settings.find("environment");
    if (said == made.settings.end()) return;
    for (const auto& [name, pattern] : std::get<TextTable>(said->second.value))
      if (auto wrong = pattern_problem(pattern))
        problems_.push_back(
            {said->second.entries.at(name), "the pattern: " + *wrong, said->second.line});
  }

  // Calls body(pattern, table) for each "[title.PATTERN]", in order.
  template <class F>
  void each_pattern(const toml::node& node, const char* title, F body) {
    const toml::table* const table = node.as_table();
    const std::string form = std::string("these sections are written [") + title + ".\"PATTERN\"]";
    if (table == nullptr) return complain(node.source().begin, form);
    for (const auto& [key, inner] : entries(*table)) {
      const auto at = key->source().begin;
      if (auto wrong = pattern_problem(key->str()))
        complain(at, "the pattern: " + *wrong);
      else if (inner->is_table())
        body(std::string(key->str()), *inner->as_table());
      else
        complain(at, form);
    }
  }

  void read_devices(const toml::node& node, Layer& layer) {
    each_pattern(node, "devices", [&](const std::string& pattern, const toml::table& table) {
      Layer::Device device{pattern, {}};
      for (const auto& [key, inner] : entries(table))
        setting(*key, *inner, "", true, device.settings);
      layer.devices.push_back(std::move(device));
    });
  }

  // Those of other hosts are checked as well: one file is for a whole cluster.
  void read_nodes(const toml::node& node, const std::string& host, Layer& layer) {
    in_node_ = true;
    each_pattern(node, "nodes", [&](const std::string& pattern, const toml::table& table) {
      Layer inside;
      root(table, inside);
      const std::string brief = host.substr(0, host.find('.'));
      if (!matches(pattern, host) && !matches(pattern, brief)) return;
      if (inside.settings.contains("policy.name")) layer.settings.erase("policy.parameters");
      for (auto& [path, said] : inside.settings) layer.settings[path] = std::move(said);
      for (auto& device : inside.devices) layer.devices.push_back(std::move(device));
      std::erase_if(layer.classes, [&](const Layer::Class& old) {
        return std::any_of(inside.classes.begin(), inside.classes.end(),
                           [&](const Layer::Class& fresh) { return fresh.name == old.name; });
      });
      layer.classes.insert(layer.classes.begin(), std::make_move_iterator(inside.classes.begin()),
                           std::make_move_iterator(inside.classes.end()));
    });
  }

  std::string_view text_;
  std::string name_;
  std::vector<Problem>& problems_;
  bool in_node_ = false;
};

// A value as one word, as the environment and the command line have it.
tl::expected<Value, std::string> from_word(const SettingKey& key, const std::string& word) {
  if (key.type == Type::kBoolean) {
    if (word == "true" || word == "1") return true;
    if (word == "false" || word == "0") return false;
    return not_wanted(key, "");
  }
  if (key.type == Type::kInteger) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || end != word.data() + word.size()) return not_wanted(key, "");
    return from_integer(key, number);
  }
  if (key.type != Type::kTable) return from_text(key, word);
  TextTable table;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t end = std::min(word.find(',', at), word.size());
    const std::string part = word.substr(at, end - at);
    const std::size_t equal = part.find('=');
    if (equal == 0 || equal == part.npos)
      return tl::unexpected("must be NAME=VALUE,...; '" + part + "' is not");
    table[part.substr(0, equal)] = part.substr(equal + 1);
    at = end + 1;
  }
  return table;
}

}  // namespace

Layer read_toml(std::string_view text, const std::string& name, const std::string& host,
                std::vector<Problem>& problems) {
  return Reader(text, name, problems).read(host);
}

Layer read_assignment(const Assignment& assignment, std::vector<Problem>& problems) {
  Layer layer;
  const SettingKey* const key = find_setting(assignment.path);
  const Place place{assignment.source};
  if (key == nullptr) {
    std::vector<std::string> known;
    for (const SettingKey& candidate : setting_keys()) known.push_back(candidate.path);
    problems.push_back(
        {place,
         "unknown key '" + assignment.path + "'" + policies::did_you_mean(assignment.path, known),
         {}});
    return layer;
  }
  auto value = from_word(*key, assignment.text);
  if (value)
    layer.settings[key->path] = {std::move(*value), place};
  else
    problems.push_back({place, "'" + key->path + "' " + value.error(), {}});
  return layer;
}

}  // namespace vitamin::config
