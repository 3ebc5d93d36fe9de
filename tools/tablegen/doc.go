// Package tablegen turns the tables of contracts/tables into the Go package gen/tables.
//
// It reads and checks (errors.v1.yaml: the error taxonomy; every other file: one lifecycle table of states × events) and
// writes Go text. It refuses what is incomplete, doubled or unknown, and names file, line and row. What a state or an
// event means stays out of it: that is in the tables and in the rooms that run on them.
package tablegen
