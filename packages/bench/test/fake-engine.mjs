// Another engine's command line, as `--against` sees one: it answers the miniature's known prompt, slowly by its word.
console.log("ids: 379, 46, 770");
console.log("token: 250.0 s\ntoken: 100.0 s\ntoken: 100.0 s");
