package fsdpd

import "strings"

type renamedField struct{ message, before, name string }

// renamedFields are fields of a job spec that release 0.1 had under another name, as in base/spec_text/renamed_fields.cc.
var renamedFields = []renamedField{
	{"Data", "ignored_token", "ignore_index"},
	{"InitialValues", "deviation", "std"},
	{"InitialValues", "embedding_deviation", "embedding_std"},
	{"Plugin.Unit", "borrows", "tied_to"},
	{"Plugin.Unit", "kept_values", "saved_values"},
	{"Plugin.Unit", "kept_values_selective", "saved_values_selective"},
}

// currentName returns the current name of a field that had the name `key` (also in camelCase), or "". `message` is a
// full name.
func currentName(message, key string) string {
	normalized := func(text string) string { return strings.ToLower(strings.ReplaceAll(text, "_", "")) }
	for _, each := range renamedFields {
		if message == "fsdpd.v1."+each.message && normalized(each.before) == normalized(key) {
			return each.name
		}
	}
	return ""
}
