from my_utils.why.command import main

raise SystemExit(main())
