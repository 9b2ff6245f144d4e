# A field's comment that goes on in lines below it, in one line: for protoc those would be the next field's.
{
  match($0, /^ */)
  if (beside && RLENGTH > indent && $0 ~ /^ *\/\//) {
    sub(/^ *\/\/ ?/, "")
    held = held " " $0
    next
  }
  if (NR > 1) print held
  held = $0
  indent = RLENGTH
  beside = $0 ~ /; *\/\//
}
END { print held }
