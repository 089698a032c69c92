from my_utils.diff.command import main

raise SystemExit(main())
